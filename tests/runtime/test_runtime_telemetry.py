"""Logs come out typed, at their level and in few writes; metrics and health answer over HTTP."""

import errno
import io

import aiohttp
import msgspec

from services.runtime.config.frontend import FrontendConfig
from services.runtime.health import HealthServer
from services.runtime.observability.telemetry import new_registry, open_log


def test_log_lines_are_json_with_what_was_bound() -> None:
    stream = io.StringIO()
    log = open_log(FrontendConfig(), stream, stage="frontend", id="f1")
    log.debug("too fine")
    log.info("turn", turn="t1", tokens=3)
    line = msgspec.json.decode(stream.getvalue(), type=dict[str, object])
    assert str(line.pop("time")).endswith("Z")
    bound = {"level": "info", "event": "turn", "stage": "frontend", "id": "f1"}
    assert line == {**bound, "turn": "t1", "tokens": 3}


async def test_health_is_served() -> None:
    reasons = ["loading the model", None]
    server = HealthServer(new_registry(), lambda: reasons.pop(0))
    port = await server.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/live") as live:
            assert live.status == 200
        for expected in (
            (503, {"status": "not ready", "reason": "loading the model"}),
            (200, {"status": "ready"}),
        ):
            async with session.get("/ready") as ready:
                assert (ready.status, await ready.json()) == expected
        async with session.get("/metrics") as metrics:
            assert "process_cpu_seconds_total" in await metrics.text()
            assert metrics.content_type == "text/plain"
        openmetrics = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with session.get("/metrics", headers=openmetrics) as metrics:
            assert (await metrics.text()).endswith("# EOF\n")
    await server.stop()


def test_a_client_cannot_write_to_the_operators_terminal() -> None:
    stream = io.StringIO()
    log = open_log(FrontendConfig(log_format="console"), stream)
    log.warning("request", path="/v1/\x1b]0;title\x07\nfake line", user_agent="\x9b31m")
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert "\\x9b31m" in line


def test_log_on_a_full_disk_loses_lines_and_counts_them() -> None:
    class Disk(io.StringIO):
        full = False

        def write(self, text: str) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    disk = Disk()
    log = open_log(FrontendConfig(log_format="json"), disk)
    log.warning("first")
    disk.full = True
    log.warning("lost")  # no request fails for it
    log.error("lost")
    disk.full = False
    log.warning("last")
    events = [msgspec.json.decode(line) for line in disk.getvalue().splitlines() if line]
    assert [event["event"] for event in events] == ["first", "log.lines_lost", "last"]
    assert events[1]["lines"] == 2
