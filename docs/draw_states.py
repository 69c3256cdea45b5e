"""Draw the states of a job from the table in the code: `python docs/draw_states.py` prints the diagram."""

from dibs.jobs.states import TRANSITIONS, JobState


def drawing() -> str:
    """Return the diagram of docs/states.md, in mermaid."""
    starts = [f"    [*] --> {state}" for state in (JobState.ready, JobState.scheduled, JobState.blocked)]
    ends = [f"    {state} --> [*]" for state in JobState if not TRANSITIONS[state]]
    return "\n".join(["```mermaid", "stateDiagram-v2", *starts, *_transitions(), *ends, "```"])


def _transitions() -> list[str]:
    return [f"    {old} --> {new}" for old in JobState for new in JobState if new in TRANSITIONS[old]]


if __name__ == "__main__":
    print(drawing())  # noqa: T201
