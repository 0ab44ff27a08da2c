"""Settings of the machine's package index for an image build."""

from __future__ import annotations

from pathlib import Path

from medweave_testbed import package_index

LISTED = """\
:env:.default-timeout='60'
:env:.find-links='/opt/wheels'
:env:.index-url='https://mirror.example.org/simple'
global.cert='/etc/ssl/own.crt'
global.index-url='https://other.example.org/simple'
install.extra-index-url='https://a.example.org\\nhttps://b.example.org'
"""


def test_the_environment_wins_over_files() -> None:
    pip_settings = package_index.settings(LISTED)
    assert pip_settings["index-url"] == "https://mirror.example.org/simple"
    assert pip_settings["timeout"] == "60"


def test_the_builds_settings_hold_no_path_of_the_machine() -> None:
    text = package_index.pip_conf(package_index.settings(LISTED), "/etc/ssl/certs/ca-certificates.crt")
    assert text.splitlines() == [
        "[global]",
        "index-url = https://mirror.example.org/simple",
        "extra-index-url = https://a.example.org",
        "    https://b.example.org",
        "timeout = 60",
        "cert = /etc/ssl/certs/ca-certificates.crt",
    ]


def test_a_machine_without_settings_gives_none() -> None:
    assert package_index.pip_conf(package_index.settings(""), "") == "[global]\n"


def test_the_authorities_are_those_that_pip_uses(tmp_path: Path) -> None:
    own = tmp_path / "own.crt"
    own.touch()
    assert package_index.certificates_of({"cert": str(own)}, {"SSL_CERT_FILE": "/other"}) == own
    assert package_index.certificates_of({}, {"SSL_CERT_FILE": str(own)}) == own
    assert package_index.certificates_of({"cert": str(tmp_path / "gone")}, {"SSL_CERT_FILE": str(own)}) == own
