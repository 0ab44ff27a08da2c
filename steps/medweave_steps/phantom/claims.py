"""Synthetic claims in the columns of the public file of Medicare Part B, and an exclusion list in those of the OIG's LEIE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.tables import ListedTarget, TableColumn, TableSchema
from medweave_steps.phantom.tables import SCHEMA_FILE, schema_text, write_table
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import atomic_directory

if TYPE_CHECKING:
    from medweave_steps.phantom.config import PhantomConfig

Column = npt.NDArray[Any]

CLAIMS_FILE, LIST_FILE = "claims.tsv", "exclusions.csv"
LISTED, UNLISTED = "excluded", "not-excluded"
COLUMN_KINDS: Mapping[str, str] = {
    "npi": "group", "nppes_provider_last_org_name": "identifier", "nppes_provider_first_name": "identifier",
    "nppes_provider_mi": "identifier", "nppes_credentials": "identifier", "nppes_provider_gender": "category",
    "nppes_entity_code": "category", "nppes_provider_street1": "identifier", "nppes_provider_street2": "identifier",
    "nppes_provider_city": "identifier", "nppes_provider_zip": "identifier", "nppes_provider_state": "category",
    "nppes_provider_country": "binary", "provider_type": "category", "medicare_participation_indicator": "category",
    "place_of_service": "category", "hcpcs_code": "hashed", "hcpcs_description": "identifier",
    "hcpcs_drug_indicator": "category", "line_srvc_cnt": "numeric", "bene_unique_cnt": "numeric",
    "bene_day_srvc_cnt": "numeric", "average_Medicare_allowed_amt": "numeric", "stdev_Medicare_allowed_amt": "numeric",
    "average_submitted_chrg_amt": "numeric", "stdev_submitted_chrg_amt": "numeric",
    "average_Medicare_payment_amt": "numeric", "stdev_Medicare_payment_amt": "numeric",
    "average_Medicare_standard_amt": "numeric",
}  # fmt: skip
"""The 29 columns, 15 of the physician and 14 of the procedure, and their kinds in a schema."""
LIST_COLUMNS = (
    "LASTNAME", "FIRSTNAME", "MIDNAME", "BUSNAME", "GENERAL", "SPECIALTY", "UPIN", "NPI", "DOB", "ADDRESS", "CITY", "STATE",
    "ZIP", "EXCLTYPE", "EXCLDATE", "REINDATE", "WAIVERDATE", "WVRSTATE",
)  # fmt: skip
STATES = (
    "AL", "AK", "AZ", "AR", "CA", "CO", "CT", "DE", "FL", "GA", "HI", "ID", "IL", "IN", "IA", "KS", "KY",
    "LA", "ME", "MD", "MA", "MI", "MN", "MS", "MO", "MT", "NE", "NV", "NH", "NJ", "NM", "NY", "NC", "ND",
    "OH", "OK", "OR", "PA", "RI", "SC", "SD", "TN", "TX", "UT", "VT", "VA", "WA", "WV", "WI", "WY", "DC",
)  # fmt: skip
SPECIALTIES = (
    "Internal Medicine", "Family Practice", "Diagnostic Radiology", "Cardiology", "Nurse Practitioner", "Orthopedic Surgery",
    "Physical Therapist", "Optometry", "Dermatology", "Ophthalmology", "Podiatry", "Psychiatry", "Urology", "Neurology",
    "Chiropractic", "Anesthesiology", "Emergency Medicine", "General Surgery", "Pain Management", "Clinical Laboratory",
)  # fmt: skip
NUM_PROCEDURES = 400
FIRST_NPI = 9_000_000_000
"""NPIs of providers begin with 1 or 2: none of these belongs to anyone."""
_ROWS_OF_PROVIDER = (1, 13)
_FEWEST_BENEFICIARIES = 11  # the public file leaves out rows of fewer


def claims_schema(*, synthetic: bool) -> TableSchema:
    """Return the schema of the claims: identifiers are no features, procedure codes are hashed, numbers are logarithms."""
    return TableSchema(
        columns=tuple(
            TableColumn(
                name=name,
                kind=kind,  # type: ignore[arg-type]  # of a mapping of texts
                log=kind == "numeric",
                positive="US" if kind == "binary" else None,
            )
            for name, kind in COLUMN_KINDS.items()
        ),
        listed_target=ListedTarget(column="npi", list_column="NPI", listed=LISTED, unlisted=UNLISTED),
        synthetic=synthetic,
    )


def write_claims(config: PhantomConfig, context: StepContext) -> Mapping[str, Any]:
    """Write claims, exclusion list and schema; return the numbers of rows and providers."""
    rng = np.random.default_rng(config.seed)
    provider, is_listed = _providers(rng, rows=config.rows, listed_rows=config.listed_rows)
    count = len(is_listed)
    claims = {**_of_physicians(rng, count, is_listed, provider), **_of_procedures(rng, provider, is_listed)}
    assert tuple(claims) == tuple(COLUMN_KINDS)
    with atomic_directory(config.output) as folder:
        write_table(folder / CLAIMS_FILE, claims, separator="\t")
        write_table(folder / LIST_FILE, _exclusions(claims, provider, is_listed), separator=",")
        (folder / SCHEMA_FILE).write_text(schema_text(claims_schema(synthetic=True)), encoding="utf-8")
    context.notice(
        f"{len(provider)} rows of {count} providers, {int(is_listed[provider].sum())} rows of excluded ones."
    )
    return {
        "rows": len(provider), "providers": count, "listed_rows": int(is_listed[provider].sum()),
        "listed_providers": int(is_listed.sum()), "synthetic": True,
    }  # fmt: skip


def _providers(rng: np.random.Generator, *, rows: int, listed_rows: int) -> tuple[Column, npt.NDArray[np.bool_]]:
    """Return the provider of each row, and which providers are on the list; the first ones have exactly the listed rows."""
    sizes = [_sizes(rng, total) for total in (listed_rows, rows - listed_rows)]
    provider = np.repeat(np.arange(len(sizes[0]) + len(sizes[1])), [*sizes[0], *sizes[1]])
    count = len(sizes[0]) + len(sizes[1])
    shuffled = rng.permutation(count)
    is_listed = np.zeros(count, np.bool_)
    is_listed[shuffled[: len(sizes[0])]] = True
    return np.sort(shuffled[provider]), is_listed


def _sizes(rng: np.random.Generator, total: int) -> list[int]:
    """Return the rows of each provider; the last one has what remains."""
    drawn = rng.integers(*_ROWS_OF_PROVIDER, total)
    ends = np.minimum(np.cumsum(drawn), total)
    number = int(np.searchsorted(ends, total)) + 1 if total else 0
    return [int(size) for size in np.diff(ends[:number], prepend=0)]


def _of_physicians(
    rng: np.random.Generator, count: int, is_listed: npt.NDArray[np.bool_], provider: Column
) -> dict[str, Column]:
    is_organization = rng.random(count) < 0.07
    share = np.linspace(2, 0.4, len(SPECIALTIES))
    of_listed = share * rng.uniform(0.5, 1.8, len(SPECIALTIES))  # some are listed more often
    types = [rng.choice(len(SPECIALTIES), count, p=weights / weights.sum()) for weights in (share, of_listed)]
    number = np.arange(count).astype(str)
    columns: dict[str, Column] = {
        "npi": (FIRST_NPI + np.arange(count)).astype(str),
        "nppes_provider_last_org_name": np.char.add("SYNTHETIC ", number),
        "nppes_provider_first_name": np.where(is_organization, "", np.char.add("FIRST ", number)),
        "nppes_provider_mi": np.where(is_organization, "", rng.choice(list("ABCDEFGHJKLM"), count)),
        "nppes_credentials": np.where(is_organization, "", rng.choice(["M.D.", "D.O.", "N.P.", "D.C."], count)),
        "nppes_provider_gender": np.where(is_organization, "", rng.choice(["F", "M"], count)),
        "nppes_entity_code": np.where(is_organization, "O", "I"),
        "nppes_provider_street1": np.char.add(number, " PHANTOM STREET"),
        "nppes_provider_street2": np.full(count, ""),
        "nppes_provider_city": np.char.add("TOWN ", rng.integers(0, 900, count).astype(str)),
        "nppes_provider_zip": np.char.zfill(rng.integers(0, 100_000, count).astype(str), 5),
        "nppes_provider_state": rng.choice(STATES, count),
        "nppes_provider_country": np.where(rng.random(count) < 0.998, "US", "CA"),
        "provider_type": np.array(SPECIALTIES)[np.where(is_listed, types[1], types[0])],
        "medicare_participation_indicator": np.where(rng.random(count) < np.where(is_listed, 0.97, 0.995), "Y", "N"),
    }
    return {name: values[provider] for name, values in columns.items()}


def _of_procedures(rng: np.random.Generator, provider: Column, is_listed: npt.NDArray[np.bool_]) -> dict[str, Column]:
    """Return the columns of the procedures; on average, listed providers bill more services per beneficiary and charge more."""
    rows, listed = len(provider), is_listed[provider]
    excess = np.where(is_listed, rng.normal(0.55, 0.4, len(is_listed)), rng.normal(0, 0.4, len(is_listed)))[provider]
    procedure = np.minimum(rng.geometric(0.012, rows) - 1, NUM_PROCEDURES - 1)
    is_facility = rng.random(rows) < 0.4
    beneficiaries = _FEWEST_BENEFICIARIES + rng.lognormal(3, 1.1, rows).astype(np.int64)
    days = np.ceil(beneficiaries * np.exp(np.abs(rng.normal(0, 0.25, rows)) + 0.4 * np.maximum(excess, 0)))
    services = np.ceil(days * np.exp(np.abs(rng.normal(0, 0.3, rows)) + 0.5 * np.maximum(excess, 0)))
    allowed = (
        np.exp(3 + 1.2 * np.sin(np.arange(NUM_PROCEDURES))[procedure] + rng.normal(0, 0.3, rows)) + 5 * is_facility
    )
    submitted = allowed * np.exp(rng.normal(0.9, 0.3, rows) + 0.6 * excess)
    payment = allowed * rng.uniform(0.7, 0.8, rows)
    spread = np.where(listed, 0.16, 0.2)

    def money(values: Column) -> Column:
        return np.char.mod("%.2f", values)

    return {
        "place_of_service": np.where(is_facility, "F", "O"),
        "hcpcs_code": np.char.add("P", np.char.zfill(procedure.astype(str), 4)),
        "hcpcs_description": np.char.add("Synthetic procedure ", procedure.astype(str)),
        "hcpcs_drug_indicator": np.where(procedure % 17 == 0, "Y", "N"),
        "line_srvc_cnt": services.astype(np.int64),
        "bene_unique_cnt": beneficiaries,
        "bene_day_srvc_cnt": days.astype(np.int64),
        "average_Medicare_allowed_amt": money(allowed),
        "stdev_Medicare_allowed_amt": money(allowed * spread * rng.uniform(0.2, 1.8, rows)),
        "average_submitted_chrg_amt": money(submitted),
        "stdev_submitted_chrg_amt": money(submitted * spread * rng.uniform(0.2, 1.8, rows)),
        "average_Medicare_payment_amt": money(payment),
        "stdev_Medicare_payment_amt": money(payment * spread * rng.uniform(0.2, 1.8, rows)),
        "average_Medicare_standard_amt": money(payment * rng.normal(1, 0.03, rows)),
    }


def _exclusions(claims: Mapping[str, Column], provider: Column, is_listed: npt.NDArray[np.bool_]) -> dict[str, Column]:
    """Return the exclusion list: the listed providers, and as many entries from before there were NPIs."""
    first_rows = np.unique(provider, return_index=True)[1]
    rows = first_rows[is_listed[provider[first_rows]]]
    count = 2 * len(rows)

    def with_old(values: Column, old: str) -> Column:
        return np.concatenate([values, np.full(len(rows), old)])

    columns = {name: np.full(count, "") for name in LIST_COLUMNS}
    columns |= {
        "LASTNAME": with_old(claims["nppes_provider_last_org_name"][rows], "SYNTHETIC"),
        "FIRSTNAME": with_old(claims["nppes_provider_first_name"][rows], "OLD"),
        "GENERAL": np.full(count, "SYNTHETIC"),
        "SPECIALTY": with_old(claims["provider_type"][rows], ""),
        "NPI": with_old(claims["npi"][rows], "0000000000"),
        "STATE": with_old(claims["nppes_provider_state"][rows], "NY"),
        "ZIP": with_old(claims["nppes_provider_zip"][rows], "00000"),
        "EXCLTYPE": np.full(count, "1128a1"),
        "EXCLDATE": np.full(count, "20150420"),
        "REINDATE": np.full(count, "00000000"),
        "WAIVERDATE": np.full(count, "00000000"),
    }
    return columns
