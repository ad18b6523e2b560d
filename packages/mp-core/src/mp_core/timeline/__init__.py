"""A picture of a run: where the time and the memory went, of all its processes.

    recording.py     `timeline`: the block whose run is recorded, and the report at its end
    recorder.py      the events of this process
    events.py        their kinds, and the files that have them
    memory.py        samples of memory, by the owner of the timeline
    remote.py        the processes of other machines, under an engine
    run.py           what a folder of such files says: processes, spans, messages
    trace_format.py  a report in the trace-event format
    summary.py       sentences about a run
    page.py          a report as a page of HTML, with page.html

`timeline.c` writes the events. Nothing here is imported before a timeline is asked for: `MP_TIMELINE` and
`MP_TIMELINE_RUN` in the environment have `mp_core` import `from_environment`.
"""

from __future__ import annotations

from mp_core.system import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mp_core.timeline.recorder import name_process as name_process
    from mp_core.timeline.recording import recover as recover
    from mp_core.timeline.recording import timeline as timeline

# A process that only records imports the recorder, and nothing for the report.
_MODULES = {"name_process": "recorder", "recover": "recording", "timeline": "recording"}
__all__ = ["name_process", "recover", "timeline"]

if not TYPE_CHECKING:  # a type checker that saw this would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(imports.load(f"{__name__}.{_MODULES[name]}"), name)
        return value
