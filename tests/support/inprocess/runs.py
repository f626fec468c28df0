"""Runs whose workers restart in process, made to do so all together."""

from typing import Any

from tests.support.world import Story, a_running_story


def an_iterating_story(size: int = 2, agents_max: int | None = None, **fields: Any) -> Story:
    """Return a story in which the first iteration of ``size`` hosts runs."""
    story = a_running_story(size, agents_max, **fields)
    enter_all(story)
    return story


def enter_all(story: Story) -> None:
    for name, agent in story.agents.items():
        if agent.session_id is not None and agent.round_id is not None:
            story.enter(name)
    story.obey_all()


def go_on(story: Story) -> None:
    """Let everybody do what it is told, and enter the next iteration."""
    story.obey_all()
    enter_all(story)
