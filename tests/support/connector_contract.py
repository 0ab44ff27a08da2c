"""What every connector does, written once: a back-end inherits it and says in a fixture where its site is."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException

from medweave_connectors.host.errors import JobEndedBySite, SiteUnreachable, TimeLimitExceeded
from medweave_connectors.runlog.run import RunRecord
from support.connector_runs import (
    FIGURES,
    JOB,
    Site,
    begin_record,
    gone,
    job,
    run_job,
    say,
    schedule,
    sleeping,
    until,
    used,
    using,
)
from support.reuse_contract import ReuseContract

VALUE = "a $HOME $(touch harm) `touch harm` \"b\" 'c' \\ d\nsecond line;"
JOBS = (JOB, "/train/1", "/train/2", "/train/3")
COPY_ERRORS = (WorkflowExecutionException, OSError)
MUCH_LINES, MUCH_BYTES, MOST_MIB = 150_000, 15_000_000, 8.0  # so many lines, stored one by one, would take 8.3 MiB more
NO_QUEUE = {"test_a_job_in_a_queue_outlives_the_connection": "its jobs end with the connection"}
ENDED_BY_CLUSTER = {"test_job_with_a_lost_connection_is_ended_and_not_completed": "the cluster keeps it, whoever looks"}


class ConnectorContract(ReuseContract):
    """The suite. A back-end's class has a fixture `site`, and names in `lacks` the tests that do not apply."""

    def __init_subclass__(cls, *, lacks: Mapping[str, str] | None = None, **keywords: Any) -> None:
        """Remove tests that do not apply.

        Args:
            lacks: name of a test to the reason why this back-end has nothing that it could look at.
        """
        super().__init_subclass__(**keywords)
        for name in lacks or {}:
            assert callable(getattr(ConnectorContract, name, None)), f"{cls.__name__} lacks an unknown test: {name}"
            setattr(cls, name, None)

    @pytest.fixture
    def site(self) -> Site:
        """Return the back-end's site."""
        raise NotImplementedError

    @pytest.fixture
    def record(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
        """Return a running record, in which some jobs are scheduled."""
        record = begin_record(tmp_path, monkeypatch)
        schedule(record, monkeypatch, *JOBS)
        return record

    # ---- the engine's own commands

    def test_command_returns_output_and_exit_code(self, site: Site) -> None:
        async def act(connector: Any, place: ExecutionLocation) -> list[Any]:
            commands = [
                ["echo", "out;", "echo", "err", ">&2;", "exit", "3"],
                ["exit", "0"],
                ["exit", "1"],
                ["exit", "70"],
                ["exit", "255"],
                ["kill", "-KILL", "$$"],
                ["printf", "'no end'"],
                ["cat"],
            ]
            results = [await connector.run(place, words, capture_output=True) for words in commands]
            assert (await connector.run(place, ["if", "then"], capture_output=True))[1] == 2, "its own syntax error"
            assert await connector.run(place, ["true"]) is None
            with pytest.raises(WorkflowExecutionException, match="ended with 3"):  # the caller does not get the code
                await connector.run(place, say("exit 3"))
            return results

        failed, zero, one, seventy, last, killed, short, no_input = using(site, act)
        assert failed == ("out\nerr", 3)
        assert (zero, one, seventy) == (("", 0), ("", 1), ("", 70))
        assert last == ("", 255), "not taken for a lost connection"
        assert killed[1] == 137
        assert short == ("no end", 0)
        assert no_input == ("", 0)

    def test_a_command_has_its_environment_and_folder(self, site: Site) -> None:
        folder = f"{site.work}/{site.odd_name}"

        async def act(connector: Any, place: ExecutionLocation) -> list[Any]:
            await connector.run(place, ["mkdir", "-p", shlex.quote(folder)])
            keywords = {"environment": {"VALUE": VALUE}, "workdir": folder, "capture_output": True}
            nowhere = {"workdir": f"{site.work}/missing", "capture_output": True}
            return [
                await connector.run(place, ["pwd"], **keywords),
                await connector.run(place, ["printf", "%s", '"$VALUE"'], **keywords),
                await connector.run(place, ["pwd"], **keywords | {"workdir": "/usr/lib"}),
                await connector.run(place, ["touch", f"{site.work}/harm"], **nowhere),
                await connector.run(place, ["find", site.work, "-name", "harm"], capture_output=True),
            ]

        there, value, lib, nowhere, harm = using(site, act)
        assert there == (folder, 0)
        assert value == (VALUE, 0)
        assert lib == ("/usr/lib", 0)
        assert nowhere[1] != 0
        assert harm == ("", 0), "no value was run, and nothing in another folder"

    def test_much_output_of_a_command_is_whole(self, site: Site) -> None:
        async def act(connector: Any, place: ExecutionLocation) -> Any:
            return await connector.run(place, ["seq", str(MUCH_LINES)], capture_output=True)

        text, code = using(site, act)
        assert code == 0
        assert text.splitlines() == [str(n) for n in range(1, MUCH_LINES + 1)]

    @pytest.mark.slow
    def test_hanging_command_blocks_no_other(self, site: Site) -> None:
        # Fault C9 of the engine: its one shell runs all commands one after the other.
        async def act(connector: Any, place: ExecutionLocation) -> float:
            hanging = asyncio.create_task(connector.run(place, ["sleep", "30"], capture_output=True))
            await asyncio.sleep(0.1)
            before = time.monotonic()
            answers = await asyncio.gather(
                *(connector.run(place, ["echo", str(n)], capture_output=True) for n in range(30))
            )
            assert answers == [(str(n), 0) for n in range(30)]
            hanging.cancel()
            with pytest.raises((SiteUnreachable, TimeLimitExceeded), match="did not end within 1 s"):
                await connector.run(place, ["sleep", "30"], capture_output=True, timeout=1)
            return time.monotonic() - before

        assert using(site, act) < 20

    # ---- jobs

    @pytest.mark.slow
    def test_job_report_is_fetched(self, site: Site, record: RunRecord, capsys: pytest.CaptureFixture[str]) -> None:
        script = f"""echo '{FIGURES}' >&2; printf %s "$VALUE" > value
            mkdir report; echo x > report/fragment.html; echo '{{}}' > run_report.json"""
        assert using(site, job(site, script, environment={"VALUE": VALUE})) == ("", 0)
        assert site.read(f"{site.work}/value") == VALUE
        assert "case 1/2: x, 4 s left" in capsys.readouterr().err
        record.job_ended(JOB, "completed")
        assert (record.folder / "reports" / "train" / "report" / "fragment.html").read_text() == "x\n"
        assert (record.folder / "reports" / "train" / "run_report.json").is_file()

    @pytest.mark.slow
    def test_a_job_in_a_folder_with_an_odd_name(self, site: Site, record: RunRecord) -> None:
        folder = f"{site.work}/{site.odd_name}"
        assert using(site, job(site, "pwd > where; echo {} > run_report.json", folder=folder)) == ("", 0)
        assert site.read(f"{folder}/where") == f"{folder}\n"
        record.job_ended(JOB, "completed")
        assert (record.folder / "reports" / "train" / "run_report.json").is_file()

    @pytest.mark.slow
    def test_failed_job_reports_its_own_error_message(self, site: Site, record: RunRecord) -> None:
        async def act(connector: Any, place: ExecutionLocation) -> None:
            for code in (1, 70, 255):
                script = f"echo 'medweave-step train: NaN.' >&2; exit {code}"
                why, exit_code = await run_job(site, connector, place, script)
                assert exit_code == code
                assert re.fullmatch(site.before_words + r"medweave-step train: NaN\.", why), why
                outcome = record.jobs[JOB].outcome
                assert outcome is not None
                assert (outcome.cause, outcome.exit_code) == (why, code)
                assert outcome.kept_at == site.folder_of_failed_job(connector.deployment_name, place.name, site.work)
            assert (await run_job(site, connector, place, "kill -KILL $$"))[1] == 137
            assert await run_job(site, connector, place, "cat; echo x > made") == ("", 0), "no input"

        using(site, act)
        assert site.read(f"{site.work}/made") == "x\n"

    @pytest.mark.slow
    def test_output_and_errors_of_a_job_are_separate(self, site: Site, record: RunRecord) -> None:
        async def act(connector: Any, place: ExecutionLocation) -> None:
            await connector.run(place, ["mkdir", "-p", site.work])
            await connector.run(place, ["printf", "hello", ">", f"{site.work}/in.txt"])
            streams = {"stdin": "in.txt", "stdout": "out.txt", "stderr": "err.txt"}
            assert await run_job(site, connector, place, "cat; echo oops >&2", **streams) == ("", 0)
            # With equal names, the engine writes only stdout to the file: a step's stderr must not be in it.
            one = {"stdout": "one.txt", "stderr": "one.txt"}
            why, code = await run_job(site, connector, place, "echo out; echo err >&2; exit 3", **one)
            assert (why.splitlines()[-1], code) == ("err", 3)

        using(site, act)
        texts = [site.read(f"{site.work}/{name}.txt") for name in ("out", "err", "one")]
        assert texts == ["hello", "oops\n", "out\n"]

    @pytest.mark.slow
    def test_much_output_of_a_job_neither_stops_it_nor_fills_the_memory(self, site: Site, record: RunRecord) -> None:
        script = f"head -c {MUCH_BYTES} /dev/zero | tr '\\0' x; seq {MUCH_LINES} >&2; exit 7"

        async def act(connector: Any, place: ExecutionLocation) -> tuple[Any, float]:
            await run_job(site, connector, place, "true", name=JOBS[1])  # exclude the memory of imports
            tracemalloc.start()
            try:
                outcome = await run_job(site, connector, place, script)
                return outcome, tracemalloc.get_traced_memory()[1] / 2**20
            finally:
                tracemalloc.stop()

        (why, code), peak_mib = using(site, act)
        assert code == 7
        assert why.splitlines()[-1] == str(MUCH_LINES)
        assert len(why) < 2**16
        assert peak_mib < MOST_MIB

    @pytest.mark.slow
    def test_parallel_jobs_have_separate_exit_codes(self, site: Site, record: RunRecord) -> None:
        async def act(connector: Any, place: ExecutionLocation) -> Any:
            return await asyncio.gather(
                *(
                    run_job(site, connector, place, f"echo {n} >&2; exit {n}", name=name, folder=f"{site.work}/{n}")
                    for n, name in enumerate(JOBS)
                )
            )

        ends = using(site, act)
        assert [code for _, code in ends] == [0, 1, 2, 3]
        assert [why.splitlines()[-1:] for why, _ in ends] == [[], ["1"], ["2"], ["3"]]

    @pytest.mark.slow
    def test_a_job_past_its_time_limit_is_ended_with_all_its_processes(self, site: Site, record: RunRecord) -> None:
        script = "(trap '' TERM INT HUP; while :; do sleep 0.2; done) & sleep 600 & wait"
        with pytest.raises(TimeLimitExceeded, match=site.time_limit):
            using(site, job(site, script, timeout=site.shortest_limit_s))
        assert gone(site)

    @pytest.mark.slow
    def test_job_that_succeeds_after_its_time_limit_has_failed(self, site: Site, record: RunRecord) -> None:
        # Slurm counts minutes, and lets it.
        with pytest.raises(TimeLimitExceeded, match=r"limit"):
            using(site, job(site, "sleep 4; echo done", timeout=2))

    @pytest.mark.slow
    def test_a_process_that_left_its_session_ends_with_a_job_past_its_time_limit(
        self, site: Site, record: RunRecord
    ) -> None:
        script = "setsid sh -c \"trap '' TERM INT HUP; while :; do sleep 0.2; done\" & sleep 600 & wait"
        with pytest.raises(TimeLimitExceeded, match=site.time_limit):
            using(site, job(site, script, timeout=site.shortest_limit_s))
        assert gone(site)

    @pytest.mark.slow
    def test_the_end_of_the_run_ends_its_jobs(self, site: Site, record: RunRecord) -> None:
        async def act(connector: Any, place: ExecutionLocation) -> None:
            going = await sleeping(site, connector, place)
            await connector.undeploy(site.external)
            with pytest.raises(asyncio.CancelledError):
                await going

        using(site, act)
        assert gone(site)

    @pytest.mark.slow
    def test_no_task_of_a_connector_outlives_its_undeployment(self, site: Site, record: RunRecord) -> None:
        # asyncio.run cancels what is left, and waits forever for a task that is starting a process.
        async def go() -> list[str]:
            before = asyncio.all_tasks()
            await used(site, job(site, "true"))
            return [repr(task) for task in asyncio.all_tasks() - before]

        assert asyncio.run(go()) == []

    @pytest.mark.slow
    def test_a_job_that_the_engine_cancels_is_ended(self, site: Site, record: RunRecord) -> None:
        async def act(connector: Any, place: ExecutionLocation) -> None:
            going = await sleeping(site, connector, place)
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going
            await until(lambda: gone(site), site.gone_s + 5)  # while the run is active

        using(site, act)

    # ---- files

    @pytest.mark.slow
    def test_files_are_copied_in_both_directions(self, site: Site, tmp_path: Path) -> None:
        source, there, back = tmp_path / "source", f"{site.folder}/copy", tmp_path / "back"
        (source / "sub folder").mkdir(parents=True)
        (source / "a").write_bytes(os.urandom(3_000_000))
        (source / "sub folder" / "ü ' \" $x.txt").write_text("b")
        (source / "empty").touch()
        (source / "run").write_text("#!/bin/sh\n")
        (source / "run").chmod(0o755)
        (tmp_path / "my file.txt").write_text("one")

        async def act(connector: Any, place: ExecutionLocation) -> Any:
            await connector.run(place, ["mkdir", "-p", site.folder])
            await connector.copy_local_to_remote(str(source), there, [place])
            await connector.copy_remote_to_local(there, str(back), place)
            await connector.copy_local_to_remote(str(tmp_path / "my file.txt"), f"{site.folder}/my file.txt", [place])
            await connector.copy_remote_to_local(f"{site.folder}/my file.txt", str(tmp_path / "home.txt"), place)
            return await connector.run(place, ["sha256sum", f"{there}/a"], capture_output=True)

        assert using(site, act)[0].split()[0] == hashlib.sha256((source / "a").read_bytes()).hexdigest()
        assert site.read(f"{there}/sub folder/ü ' \" $x.txt") == "b"
        names = sorted(path.relative_to(source) for path in source.rglob("*"))
        assert sorted(path.relative_to(back) for path in back.rglob("*")) == names
        for name in (name for name in names if (source / name).is_file()):
            assert (back / name).read_bytes() == (source / name).read_bytes()
        assert os.access(back / "run", os.X_OK)
        assert site.read(f"{site.folder}/my file.txt") == (tmp_path / "home.txt").read_text() == "one"

    @pytest.mark.slow
    def test_copy_within_a_site_is_writable(self, site: Site) -> None:
        # Inputs come from a site's store, which is read-only; a step may request a writable copy.
        name = f"{site.folder}/of the store"

        async def act(connector: Any, place: ExecutionLocation) -> None:
            await connector.run(place, ["mkdir", "-p", site.folder])
            await connector.run(
                place, ["echo", "stored", ">", shlex.quote(name), "&&", "chmod", "a-w", shlex.quote(name)]
            )
            await connector.copy_remote_to_remote(name, f"{site.folder}/a link", [place], place, read_only=True)
            await connector.copy_remote_to_remote(name, f"{site.folder}/a copy", [place], place)
            look = ["ls", "-l", shlex.quote(f"{site.folder}/a copy"), shlex.quote(f"{site.folder}/a link")]
            listing, _ = await connector.run(place, look, capture_output=True)
            assert [line.split()[0][:3] for line in listing.splitlines()] == ["-rw", "lrw"], listing

        using(site, act)

    @pytest.mark.slow
    def test_a_copy_that_cannot_be_made_is_an_error(self, site: Site, tmp_path: Path) -> None:
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "a").write_text("a")
        file, missing = f"{site.folder}/file", f"{site.folder}/missing"

        async def act(connector: Any, place: ExecutionLocation) -> None:
            await connector.run(place, ["mkdir", "-p", site.folder])
            await connector.run(place, ["touch", file])
            with pytest.raises(COPY_ERRORS):
                await connector.copy_local_to_remote(str(tmp_path / "source"), f"{file}/there", [place])
            with pytest.raises(COPY_ERRORS):
                await connector.copy_remote_to_local(missing, str(tmp_path / "back"), place)
            with pytest.raises(COPY_ERRORS):
                await connector.copy_remote_to_remote(missing, f"{site.folder}/there", [place], place)

        using(site, act)

    @pytest.mark.slow
    def test_a_stream_that_breaks_off_is_an_error(self, site: Site) -> None:
        # Fault D1 of the engine: the exit status of tar is dropped, and half a folder passes for all of it.
        async def act(connector: Any, place: ExecutionLocation) -> None:
            await connector.run(place, ["mkdir", "-p", site.folder])
            scripts = {"from": "printf 123; echo cut >&2; exit 255", "to": "cat > /dev/full"}
            for name, text in scripts.items():
                await connector.run(place, ["echo", shlex.quote(text), ">", f"{site.folder}/{name}.sh"])
            with pytest.raises(SiteUnreachable, match=site.broken_from):
                async with await connector.get_stream_reader(["sh", f"{site.folder}/from.sh"], place) as stream:
                    assert await stream.read(10) == b"123"
            with pytest.raises(SiteUnreachable, match=site.broken_to):
                async with await connector.get_stream_writer(["sh", f"{site.folder}/to.sh"], place) as stream:
                    await stream.write(b"x")

        using(site, act)

    # ---- connections

    @pytest.mark.slow
    def test_a_command_whose_connection_is_cut_is_not_sent_again(self, site: Site) -> None:
        # Faults Q4 and C9 of the engine: its fall-back runs the line again; an sbatch in it would submit two jobs.
        begun = f"{site.folder}/begun"

        async def act(connector: Any, place: ExecutionLocation) -> Any:
            await connector.run(place, ["mkdir", "-p", site.folder])
            script = f"echo x >> {begun}; sleep 2"
            going = asyncio.create_task(connector.run(place, say(script), capture_output=True))
            await until(lambda: bool(site.read(begun)))
            await asyncio.to_thread(site.cut)
            with pytest.raises(SiteUnreachable, match=site.unknown):
                await going
            return await connector.run(place, ["echo", "again"], capture_output=True)

        assert using(site, act) == ("again", 0), "a new connection is made for the next command"
        time.sleep(2.5)
        assert site.read(begun) == "x\n"

    @pytest.mark.slow
    def test_job_with_a_lost_connection_is_ended_and_not_completed(self, site: Site, record: RunRecord) -> None:
        async def act(connector: Any, place: ExecutionLocation) -> None:
            going = await sleeping(site, connector, place)
            await asyncio.to_thread(site.cut)
            with pytest.raises((SiteUnreachable, JobEndedBySite), match=site.lost):
                await going

        using(site, act)
        assert gone(site)

    @pytest.mark.slow
    def test_a_job_in_a_queue_outlives_the_connection(self, site: Site, record: RunRecord) -> None:
        script = "echo x >> begun; while [ ! -e go ]; do sleep 0.2; done; echo done > result.txt"

        async def act(connector: Any, place: ExecutionLocation) -> Any:
            going = asyncio.ensure_future(run_job(site, connector, place, script))
            await until(lambda: bool(site.read(f"{site.work}/begun")) or going.done())
            await asyncio.to_thread(site.cut)
            await asyncio.sleep(1)
            assert not going.done()
            await connector.run(place, ["touch", f"{site.work}/go"])
            return await going

        assert using(site, act) == ("", 0)
        assert (site.read(f"{site.work}/begun"), site.read(f"{site.work}/result.txt")) == ("x\n", "done\n")
