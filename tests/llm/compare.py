"""The tables of the pages on frameworks: `python -m tests.llm.compare [langchain|litellm|…]`.

Three processes call a model without a pause, once with each limiter; the server counts strictly. LiteLLM
needs an environment of its own.
"""

import sys

from .fleet import run_fleet
from .provider import WINDOW_S, Provider

KINDS = {
    "langchain": ("shaped", "own", "divided"),
    "litellm": ("shaped", "router"),
    "llama_index": ("shaped", "bucket", "window", "divided"),
    "pydantic_ai": ("shaped", "concurrency"),
}
BEGIN_S, SECONDS = 1, 17.5

if __name__ == "__main__":
    print(
        "| package | limiter | answered | refused | raised | share of the limit |\n|---|---|---|---|---|---|"
    )
    for package in sys.argv[1:] or KINDS:
        for kind in KINDS[package]:
            with Provider() as provider:
                fleet = run_fleet(f"tests.heavy.{package}.worker", kind, provider, SECONDS)
            refused, answered = len(provider.refusals), len(provider.arrivals) - len(provider.refusals)
            share = provider.share(BEGIN_S, BEGIN_S + 2 * WINDOW_S)
            print(
                f"| {package} | {kind} | {answered} | {refused} | {fleet.failed} | {share:.0%} |", flush=True
            )
