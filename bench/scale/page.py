"""The page ``docs/scale.md`` and its plots, from results that ``bench.scale.curves`` has kept."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from bench.scale import goodput_at_scale as goodput
from bench.svg import log_chart, stacked_bars

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of each time its name, what it is, and how the plot calls it.
TIMES = (
    ("rendezvous", "all agents come at once: all have ranks", "all have ranks"),
    ("restart", "a worker fails: all have new ranks", "a worker failed: new ranks"),
    ("loss", "a host falls silent: all others are told (lease 5 s)", "a host is silent: all told"),
    (
        "back",
        "the coordinator is killed and started again: all attached",
        "coordinator killed: attached",
    ),
    (
        "failover",
        "the leader is killed, etcd (TTL 3 s): all attached, a failure decided",
        "leader killed, etcd: attached",
    ),
    ("torchrun", "torchrun's c10d: all have ranks", "torchrun's c10d: ranks"),
)
MEANWHILE = (
    ("beats_cores", "cores of the coordinator while all agents beat"),
    ("beats_generator_cores", "cores of the generator while all agents beat"),
    ("beat_us", "microseconds of the coordinator for a beat"),
    ("interval_s", "seconds between two beats of an agent"),
    ("decision_p50_ms", "milliseconds until a decision on another run is known, median"),
    ("decision_p99_ms", "milliseconds until a decision on another run is known, 99th percentile"),
    ("memory_mb", "MB of memory of the coordinator"),
    ("journal_kb", "kB of the journal once all have ranks"),
)
CLAIM = 0.1  # percent of all time that the control plane may cost a large job

TEMPLATE = Path(__file__).with_name("scale.md.in")


class Figures:
    """What was measured, as medians."""

    def __init__(self, results: dict[str, Any]) -> None:
        self._by_name: dict[str, dict[str, list[float | None]]] = results["figures"]
        self.sizes = sorted({int(size) for sizes in self._by_name.values() for size in sizes})

    def median(self, name: str, size: int) -> float | None:
        """Return one figure; ``None`` if it was not measured or did not happen."""
        happened = [v for v in self._by_name.get(name, {}).get(str(size), ()) if v is not None]
        return statistics.median(happened) if happened else None

    def line(self, name: str) -> list[tuple[float, float]]:
        """Return what a plot shows of it."""
        points = ((size, self.median(name, size)) for size in self.sizes)
        return [(float(size), value) for size, value in points if value]

    def is_never(self, name: str, size: int) -> bool:
        """Return whether it was measured and did not happen."""
        return None in self._by_name.get(name, {}).get(str(size), ())

    @property
    def repeats(self) -> str:
        """How often each size was measured."""
        numbers = {len(values) for values in self._by_name.get("rendezvous", {}).values()} or {0}
        least, most = min(numbers), max(numbers)
        if least < most:
            return f"{least} to {most} runs"
        return "one run" if most == 1 else f"{most} runs"


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write the page and its plots."""
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    for name, drawing in plots(results).items():
        (images / f"scale-{name}.svg").write_text(drawing)
    (folder / "scale.md").write_text(text(results, others(folder)))


def others(folder: Path) -> list[dict[str, Any]]:
    """Return what was measured on other machines."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("scale-*.json"))]


def plots(results: dict[str, Any]) -> dict[str, str]:
    """Return the drawings by name."""
    figures = Figures(results)
    times = {called: figures.line(name) for name, _, called in TIMES}
    times["ranks, without generator"] = figures.line("rendezvous_alone")
    found = {
        "times": _chart("Times by number of agents", "seconds", times),
        "decisions": _chart(
            "A decision on another run while all beat",
            "milliseconds",
            {"median": figures.line("decision_p50_ms"), "p99": figures.line("decision_p99_ms")},
        ),
        "resources": _chart(
            "The coordinator by number of agents",
            "MB, kB",
            {"memory, MB": figures.line("memory_mb"), "journal, kB": figures.line("journal_kb")},
        ),
        "goodput": stacked_bars("Time that failures take, simulated", "%", _bars(results)),
    }
    if core := results.get("core"):
        lines = {
            name: [(float(size), value) for size, value in by_size.items() if value]
            for name, by_size in core.items()
            if "deadline" not in name
        }
        title = "One event in the coordinator's core"
        found["core"] = _chart(title, "microseconds", lines)
    return found


def text(results: dict[str, Any], beside: Sequence[dict[str, Any]] = ()) -> str:
    """Return the page, with what was measured on other machines ``beside`` it."""
    figures = Figures(results)
    planes = [goodput.ours(results), *goodput.OTHERS]
    sources = [[plane.name, plane.source] for plane in planes]
    return Template(TEMPLATE.read_text()).substitute(
        circumstances=_circumstances(results),
        processes=_processes(results),
        beside="\n\n".join(map(_beside, beside)) or "No other machine was measured.",
        times=_times(figures),
        errors=_errors(results.get("errors", {})),
        meanwhile=_meanwhile(figures),
        core=_core(results.get("core", {})),
        gpus=f"{goodput.GPUS:,}",
        hosts=f"{goodput.HOSTS:,}",
        days=goodput.DAYS,
        unexpected=goodput.UNEXPECTED,
        seeds=goodput.SEEDS,
        verdict=_verdict(planes[0]),
        goodput="\n".join(goodput.table(planes)),
        start_s=f"{goodput.START_S:g}",
        load_s=f"{goodput.LOAD_S:.0f}",
        interval_s=f"{goodput.checkpoint_interval_s(1):.0f}",
        short_interval_s=f"{goodput.checkpoint_interval_s(10):.0f}",
        sources=_table(["control plane", "its times, and their sources"], sources),
        leaders=_leaders(results.get("leaders")),
    )


def _circumstances(results: dict[str, Any]) -> str:
    found = results["circumstances"]
    versions = f"Python {found['versions']['python']} and grpcio {found['versions']['grpcio']}"
    load = f"load of {found['load'][0]:.1f} before"
    return f"{Figures(results).repeats}, on {found['cpus']} cores with a\n{load}, with {versions}"


def _processes(results: dict[str, Any]) -> str:
    number = results.get("generators", 1)
    processes = "one process" if number == 1 else f"{number} processes"
    # Earlier results had a generator of the coordinator's own priority.
    return f"{processes} of the lowest priority" if results.get("generator_nice") else processes


def _beside(results: dict[str, Any]) -> str:
    """Return what was measured on another machine."""
    figures = Figures(results)
    about = f"Medians of {_circumstances(results)}; the generator had {_processes(results)}."
    return "\n\n".join((about, _times(figures), _meanwhile(figures)))


def _chart(title: str, y_name: str, lines: dict[str, list[tuple[float, float]]]) -> str:
    return log_chart(title, "agents", y_name, {name: line for name, line in lines.items() if line})


def _times(figures: Figures) -> str:
    rows, sizes = [], figures.sizes
    for name, what, _ in TIMES:
        never = [figures.is_never(name, size) for size in sizes]
        measured = [figures.median(name, size) for size in sizes]
        cells = [_cell(*pair) for pair in zip(measured, never, strict=True)]
        rows.append([what, *cells])
        without = [_cell(figures.median(f"{name}_alone", size)) for size in sizes]
        if set(without) != {"-"}:
            rows.append(["… without the generator", *without])
    ratios = []
    for size in sizes:
        torchrun, ours = figures.median("torchrun", size), figures.median("rendezvous", size)
        ratios.append(f"{torchrun / ours:.3g}" if torchrun and ours else "-")
    rows.append(["torchrun / drumbeat, all have ranks", *ratios])
    return _table(["seconds", *_heads(sizes)], rows)


def _errors(errors: dict[str, dict[str, list[str]]]) -> str:
    """Say which runs had no figures."""
    failed = [
        f"{part} of {int(size):,} agents ({len(texts)} x: `{texts[-1]}`)"
        for part, by_size in errors.items()
        for size, texts in by_size.items()
    ]
    return f"Without figures: {'; '.join(failed)}." if failed else "Every run had its figures."


def _meanwhile(figures: Figures) -> str:
    rows = [
        [what, *(_cell(figures.median(name, size)) for size in figures.sizes)]
        for name, what in MEANWHILE
    ]
    return _table(["", *_heads(figures.sizes)], rows)


def _core(core: dict[str, dict[str, float]]) -> str:
    sizes = [int(size) for size in next(iter(core.values()), {})]
    rows = [
        [name, *(f"{value:.3g}" for value in by_size.values())] for name, by_size in core.items()
    ]
    return _table(["microseconds, median", *_heads(sizes)], rows)


def _heads(sizes: Sequence[int]) -> list[str]:
    return [f"{size:,} agents" for size in sizes]


def _bars(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    planes = [goodput.ours(results), *goodput.OTHERS]
    return {
        f"{plane.name}{'' if rate == 1 else f', {rate} x'}": {
            str(part): share for part, share in goodput.medians(plane, rate).items()
        }
        for rate in goodput.RATES
        for plane in planes
    }


def _verdict(plane: goodput.ControlPlane) -> str:
    """Say whether the control plane costs as little as is claimed."""
    shares = [goodput.own(goodput.medians(plane, rate)) for rate in goodput.RATES]
    which = ["at both rates", "at the first rate alone", "at neither rate"]
    number = sum(share >= CLAIM for share in shares)
    return f"below {CLAIM} % of all time {which[number]}"


def _leaders(leaders: dict[str, float] | None) -> str:
    if leaders is None:
        return "No leaders were measured beside each other here."
    alone, beside, killed = (
        f"{1e3 * leaders[name]:.0f} ms" for name in ("alone", "beside", "other_killed")
    )
    return (
        f"Measured with two leaders\nand {leaders['agents']:.0f} agents each on the same cores: "
        f"after a failure all have new ranks within {alone} alone, {beside} while the\n"
        f"other fleet joins, and {killed} once the other leader has been killed."
    )


def _cell(value: float | None, is_never: bool = False) -> str:
    if value is None:
        return "over 120" if is_never else "-"
    return f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
