"""Attributes that are read from another object."""

from __future__ import annotations

from operator import attrgetter
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Of(Generic[T]):
    """A read-only attribute, or a method, of another object: `seed: Of[int] = Of("current")` is
    `self.current.seed`. `named` is its name there, if it is another one."""

    def __init__(self, owner: str, named: str = "") -> None:
        self.owner, self.named = owner, named

    def __set_name__(self, cls: type, name: str) -> None:
        self.name = name
        self.read = attrgetter(f"{self.owner}.{self.named or name}")

    def __get__(self, instance: object, cls: type | None = None) -> T:
        return cast(T, self if instance is None else self.read(instance))  # on the class as a property does

    def __set__(self, instance: object, value: T) -> None:
        raise AttributeError(
            f"{type(instance).__name__}.{self.name} is that of its {self.owner}; set it there"
        )

    def __delete__(self, instance: object) -> None:
        raise AttributeError(f"{type(instance).__name__}.{self.name} is that of its {self.owner}")
