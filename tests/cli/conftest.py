import pytest
import typer
from typer.testing import CliRunner

from vlrl.cli.doctor import doctor
from vlrl.cli.fetch import fetch
from vlrl.cli.list import list_plugins
from vlrl.cli.new import new
from vlrl.cli.show import show
from vlrl.cli.train import train

APP = typer.Typer()
for name, command in {
    "list": list_plugins,
    "show": show,
    "new": new,
    "doctor": doctor,
    "train": train,
    "fetch": fetch,
}.items():
    APP.command(name, context_settings={"ignore_unknown_options": name in ("train", "show")})(command)


@pytest.fixture
def vlrl():
    """Runs a command in this process: (exit code, what it printed). ConfigErrors come through, as they do to
    `vlrl.cli.main`."""

    def call(*words):
        result = CliRunner().invoke(APP, [str(word) for word in words])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return call
