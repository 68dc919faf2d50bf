"""`python -m trainer.oracle`: check parallel configurations against the single process.

Without options the whole list runs, with `--quick` a few of it; `--list` only prints the list and
`--only "tp=2,pp=2,dp=2,zero_stage=3"` runs one configuration (`family=` picks the model: gpt2,
llama or mixtral). `--json` prints one JSON object in the last line. The exit code is 1 if a
configuration differs from the reference.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from trainer.oracle.products import Product, all_products, parse_product, quick_products
from trainer.oracle.runner import OracleRunner, Verdict


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 if all is equal, 1 if not, 2 for a wrong option."""
    options = _parse(arguments)
    try:
        products = _choose(options)
    except ValueError as error:
        sys.stderr.write(f"error: {str(error).splitlines()[0]}\n")
        return 2
    if options.list:
        _print_list(products, as_json=options.json)
        return 0
    verdicts = _check(products)
    if options.json:
        sys.stdout.write(json.dumps({"products": [v.as_dict() for v in verdicts]}) + "\n")
    return 0 if all(verdict.is_equal for verdict in verdicts) else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.oracle", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the products, run none")
    parser.add_argument("--only", metavar="KNOBS", help="check this one configuration")
    parser.add_argument("--quick", action="store_true", help="check a few products only")
    parser.add_argument("--json", action="store_true", help="one JSON object in the last line")
    return parser.parse_args(arguments)


def _choose(options: argparse.Namespace) -> list[Product]:
    if options.only is not None:
        return [parse_product(options.only)]
    return quick_products() if options.quick else list(all_products())


def _print_list(products: list[Product], *, as_json: bool) -> None:
    if as_json:
        rows = [{"name": p.name, "num_ranks": p.config.world_size} for p in products]
        sys.stdout.write(json.dumps({"count": len(rows), "products": rows}) + "\n")
        return
    for product in products:
        sys.stdout.write(f"{product.config.world_size} ranks  {product.name}\n")


def _check(products: list[Product]) -> list[Verdict]:
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        runner = OracleRunner(Path(folder))
        for product in products:
            verdict = runner.check(product)
            verdicts.append(verdict)
            sys.stdout.write(_line(verdict) + "\n")
            sys.stdout.flush()
    return verdicts


def _line(verdict: Verdict) -> str:
    state = "equal " if verdict.is_equal else "DIFFER"
    text = (
        f"{state} loss {verdict.loss:.1e}  gradients {verdict.gradient:.1e}  weights "
        f"{verdict.weight:.1e}  bound {verdict.bound:.0e}  {verdict.seconds:5.1f} s  {verdict.name}"
    )
    return f"{text}\n{verdict.error}" if verdict.error else text


if __name__ == "__main__":
    raise SystemExit(main())
