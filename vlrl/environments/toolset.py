"""Several tool environments as one: a tool server with one interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vlrl.environments.tools import ToolEnvironment, ToolEpisode
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.episodes import Observation
from vlrl.plugins.registry import ConfigError, build, register
from vlrl.plugins.stages import Environment
from vlrl.types import Row


class ToolsetEpisode(ToolEpisode):
    """An episode of every member; a call goes to the member that has its tool."""

    def __init__(self, members: Sequence[ToolEpisode]) -> None:
        super().__init__([])
        self.members = members

    def reset(self, row: Row, seed: int) -> Observation:
        openings = [member.reset(row, seed) for member in self.members]
        self.tools = {
            name: tool for member in self.members for name, tool in member.tools.items()
        }  # rows may define some
        text = "\n\n".join(opening.text for opening in openings if opening.text)
        return Observation(text, tuple(medium for opening in openings for medium in opening.media))

    def called(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        owner = next(member for member in self.members if name in member.tools)
        owner.action = self.action
        return owner.called(name, arguments)

    @property
    def stateless(self) -> bool:
        return all(member.stateless for member in self.members)

    def finished(self) -> Observation:
        return self.members[0].finished()

    def close(self) -> None:
        with ExitStack() as stack:  # one that fails keeps none of the others open
            for member in self.members:
                stack.callback(member.close)


@register("toolset")
@dataclass(frozen=True, kw_only=True)
class Toolset(ToolEnvironment):
    """VerlTool's tool server: the tools of several environments behind one interface, `of: {python: {name:
    python}, search: {...}}`.

    A call is carried out by the member that has its tool; the members' opening observations are joined.
    Deadlines of a turn are those of the toolset, limits of a tool its member's. Paper: Jiang et al. 2025
    (VerlTool), arXiv:2509.01055, sec. 3.2 (tools behind a uniform server, each with its own parser and
    state); checked against TIGER-AI-Lab/verl-tool at 980962b4, verl_tool/servers. Edge: two members with a
    tool of the same name, and members that are no tools, are refused at start-up.
    """

    of: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def members(self) -> dict[str, ToolEnvironment]:
        """The environments by name. Raises ConfigError where one has no tools."""
        built = {
            name: build(Environment, options, f"environment.of.{name}") for name, options in self.of.items()
        }
        for name, member in built.items():
            if not isinstance(member, ToolEnvironment):
                raise ConfigError(
                    f"environment.of.{name}: {member.name!r} has no tools; a toolset takes environments of "
                    "tools only"
                )
        return built

    @property
    def provides(self) -> Sequence[Capability]:
        return tuple(
            dict.fromkeys(capability for member in self.members.values() for capability in member.provides)
        )

    def check(self, phase: PhaseContext) -> None:
        if not self.of:
            raise ConfigError(
                "environment: 'toolset' needs `of`, a map of environments: {of: {python: {name: python}}}"
            )
        names = [tool["function"]["name"] for tool in self.tools()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"environment.of: more than one member has a tool {', '.join(twice)}; drop one of them"
            )
        for member in self.members.values():
            member.check(phase)

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        for member in self.members.values():
            member.setup(run)

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return [schema for member in self.members.values() for schema in member.tools()]

    def episode(self) -> ToolEpisode:
        return ToolsetEpisode([member.episode() for member in self.members.values()])
