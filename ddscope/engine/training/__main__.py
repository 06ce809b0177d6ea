"""`python -m ddscope.engine.training {data,train,evaluate}`: makes a DFlash drafter; see docs/training.md."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from ddscope.engine.errors import EngineError
from ddscope.engine.training.options import DataOptions, EvaluateOptions, TrainOptions, options_of, parser
from ddscope.engine.training.progress import Progress, progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 after one sentence when it cannot go on; 130 when it was stopped and can be resumed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parsed = parser().parse_args(given)
    command = shlex.join(["python", "-m", "ddscope.engine.training", *given])
    shown = progress()
    try:
        return _run(options_of(parsed), shown, command)
    except KeyboardInterrupt:
        shown.close()
        print("Stopped; the same command goes on with what is there.", file=sys.stderr)
        return 130
    except EngineError as problem:
        shown.close()
        print(problem, file=sys.stderr)
        return 130 if type(problem).__name__ == "Stopped" else 1
    finally:
        shown.close()


def _run(options: object, shown: Progress, command: str) -> int:
    if isinstance(options, DataOptions):
        from ddscope.engine.training.data import write_data

        data = write_data(options, shown, command)
        said = f"{data.count('sequences'):,} conversations, {data.count('tokens'):,} tokens in {data.folder}"
    elif isinstance(options, TrainOptions):
        from ddscope.engine.training.train import train

        said = f"The drafter is in {train(options, shown, command)}"
    elif isinstance(options, EvaluateOptions):
        from ddscope.engine.training.evaluate import evaluate, table

        said = table(evaluate(options, shown, command))
    else:
        raise AssertionError(f"no command takes {type(options).__name__}")
    shown.close()
    print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
