"""python -m tests.mutants: tries the mutants, and prints which of them the tests do not see."""

import argparse
import sys

from tests.mutants import results
from tests.mutants.mutant import Mutant
from tests.mutants.run import MutantError, run_tests
from tests.mutants.scratch import FOLDER, Scratch
from tests.mutants.table import MUTANTS

# Of a hundred mutants the quick tests, which try a part of each sweep, may miss so many.
_MAY_BE_MISSED = 3


def main() -> None:
    options = _options()
    chosen = [mutant for mutant in MUTANTS if _is_chosen(mutant, options.names)]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:40} {mutant.file:60} {mutant.fault}")
        return
    scratch = Scratch()
    scratch.synchronize()
    if any(mutant.is_compiled for mutant in chosen):
        print("Compiling the copy in build/mutants: minutes the first time.", flush=True)
        scratch.build()
        scratch.save_build()
    if options.check_clean:
        sys.exit(_check_clean(scratch, chosen, options))
    path = FOLDER / ("results-full.jsonl" if options.full else "results.jsonl")
    known = results.read(path) if options.resume else {}
    for mutant in chosen:
        if mutant.name not in known:
            known[mutant.name] = _try(scratch, mutant, options)
            results.append(path, known[mutant.name])
    sys.exit(_report([known[mutant.name] for mutant in chosen], chosen, options.full))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names, or of files; all by default")
    parser.add_argument("--list", action="store_true", help="print the mutants only")
    parser.add_argument("--full", action="store_true", help="with the long sweeps of their tests")
    parser.add_argument("--resume", action="store_true", help="without those tried before")
    parser.add_argument("--check-clean", action="store_true", help="run their tests unchanged")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for tests of a mutant")
    return parser.parse_args()


def _is_chosen(mutant: Mutant, parts: list[str]) -> bool:
    return not parts or any(part in mutant.name or part in mutant.file for part in parts)


def _try(scratch: Scratch, mutant: Mutant, options: argparse.Namespace) -> results.Result:
    try:
        with scratch.mutated(mutant):
            outcome = run_tests(scratch.tree, mutant.tests, options.full, options.timeout)
    except (MutantError, RuntimeError) as error:
        sys.exit(f"{mutant.name}: {error}")
    what = f"seen by {outcome.failed}" if outcome.failed else "NOT SEEN"
    print(f"{mutant.name}: {what} ({outcome.seconds:.0f} s)", flush=True)
    return results.Result(mutant.name, mutant.room, outcome.failed, round(outcome.seconds, 1))


def _check_clean(scratch: Scratch, mutants: list[Mutant], options: argparse.Namespace) -> int:
    """Runs the tests without any mutant: one that fails anyway would see them all."""
    are_clean = True
    for tests in dict.fromkeys(mutant.tests for mutant in mutants):
        outcome = run_tests(scratch.tree, tests, options.full, 10 * options.timeout)
        if outcome.failed:
            are_clean = False
            print(f"{outcome.failed} fails without a mutant.\n{outcome.output}", flush=True)
    return 0 if are_clean else 1


def _report(tried: list[results.Result], mutants: list[Mutant], is_full: bool) -> int:
    print(f"\n{results.by_room(tried)}\n")
    missed = sum(not result.seen_by for result in tried)
    if missed:
        print(f"Not seen:\n\n{results.not_seen(tried, mutants)}\n")
    allowed = 0 if is_full or len(mutants) < len(MUTANTS) else _MAY_BE_MISSED
    return 1 if missed > allowed else 0


if __name__ == "__main__":
    main()
