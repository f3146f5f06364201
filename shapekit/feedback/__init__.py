"""Feedback: turns what servers say about their limits into holds, from a status, headers and times.

Incidents: exponential backoff for refusals that do not say how long to wait.

The hold grows from 1 s to 2 s, 4 s and so on, up to the longest hold, until a request succeeds. Requests sent
before the current hold ended belong to the same incident, however late their answers come, because they say
nothing about whether that hold was long enough.

Incidents are kept per process and key. Processes share the hold itself: if several set it, the longest wins,
so refusals of one incident make one hold, not their sum. The doubling is not shared: after a hold that was
too short, the process that is refused next doubles its own last step. Between two successes, N processes hold
at least once and at most N times per step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from shapekit._runtime import process
from shapekit.clock import forgets
from shapekit.errors import AccountExhaustedError, ConfigError, QuotaExhaustedError
from shapekit.feedback.dialects import (
    DIALECTS,
    FAMILIES,
    FIRST_HOLD_S,
    OURS,
    REFUSED,
    SAYS_NOTHING,
    UNAVAILABLE,
    Answer,
    Dialect,
    Headers,
    Parser,
    ServerHint,
    heard,
    picked,
    says_nothing,
    shopify_graphql,
    wanted,
)
from shapekit.rate import SECOND_US, Duration, duration_us, one_of

__all__ = ["DIALECTS", "Answer", "Feedback", "ServerHint", "shopify_graphql"]

Place: TypeAlias = tuple[str, str | None]
"""A key and a scope."""

MOST_PLACES = 1_024
_LEAST_HOLD_S = 0.001
"""A shorter hold is treated as none."""


class _Incident(NamedTuple):
    until: float
    """When the current hold ends, in epoch seconds."""
    hold_s: float
    """The length of that hold."""
    step_s: float
    """The last backoff step; 0 if the server has said each time how long to wait."""


class Incidents:
    """The incidents of one process; thread-safe."""

    __slots__ = ("_lock", "known")

    def __init__(self) -> None:
        self.known: dict[Place, _Incident] = {}
        self._lock = process.lock()

    def unhinted(
        self, place: Place, first_s: float, most_s: float, sent_at: float, received_at: float
    ) -> float:
        """The hold from `received_at` on: a new step of `most_s` at most, or what is left of the last one."""
        with self._lock:
            known = self.known.get(place)
            step = min(first_s, most_s)
            if known is not None:
                if sent_at < known.until:
                    # Never longer than the hold: a wall clock may have been set back.
                    left_s = min(known.until - received_at, known.hold_s)
                    return left_s if left_s >= _LEAST_HOLD_S else 0.0
                if sent_at - known.until <= most_s:
                    step = min(max(first_s, 2 * known.step_s), most_s)
            self._keep(place, _Incident(received_at + step, step, step))
            return step

    def hinted(self, place: Place, hold_s: float, received_at: float) -> None:
        """Note a hold that the server asked for; it also covers refusals that do not say how long."""
        with self._lock:
            known = self.known.get(place)
            incident = _Incident(received_at + hold_s, hold_s, known.step_s if known else 0.0)
            if known is None or known.until < incident.until:
                self._keep(place, incident)

    def over(self, place: Place, sent_at: float) -> None:
        """Note a success. Only a request that was sent after the hold ends the incident."""
        with self._lock:
            if place in self.known and sent_at >= self.known[place].until:
                del self.known[place]

    def _keep(self, place: Place, incident: _Incident) -> None:
        self.known.pop(place, None)
        process.make_room(self.known, MOST_PLACES)  # of the one that was quiet for longest
        self.known[place] = incident

    def __reduce__(self) -> tuple[Any, ...]:
        # A lock cannot be pickled, and a copy starts without incidents.
        return type(self), ()


_SUCCESS_BELOW = 400
ACCOUNT = "the account"
"""The scope of the incidents of an exhausted account. No scope of a server has a blank."""
FIRST_PROBE_S = 60.0
LONGEST_PROBE_S = 3_600.0
"""How long an exhausted account is held before a call may try again: at first, and at most."""


class Feedback:
    """Reads answers and returns holds: on which scope and for how long, at most `max_hold`.

        >>> feedback = Feedback()
        >>> feedback.read(429, {"Retry-After": "2"}, sent_at=100.0, received_at=100.1).hold_s
        2.0

    1. A 429, 402, 503 or 529 holds for as long as it says. Zero, or an instant in the past, is ignored.
    2. An answer of any status that leaves nothing remaining holds until the reset, if it names one. So does a
       429 that does not say what remains.
    3. A 429 that does not say how long holds for 1 s, 2 s, 4 s …: one step per incident, which ends when a
       request succeeds that was sent after the hold, or `max_hold` after the hold.
    4. An answer that says that the account has nothing left to spend holds for 1 min, 2 min, 4 min … up to an
       hour, whatever `max_hold` is: one step per incident. It says so by an error in its body, such as
       OpenAI's `insufficient_quota`. A 402 alone says it only in the dialects "openai" and "anthropic": other
       servers answer with it when one payment fails.
    5. An answer from a cache (its `Age` is positive) says what was true when it was stored: only the
       Retry-After of such a refusal holds, for what is left of it.
    6. Nothing else holds. A 503 or 529 that does not say how long is a failure of the server, which a lower
       rate would not prevent. A 429 made by shapekit itself (`on_reject="respond"`) is ignored.

    Explicit values are obeyed whenever they arrive; the time a request was sent matters only for answers
    without one. Of two holds the longer one wins, so a late answer never shortens a hold.

    - `dialect`: "auto" detects it from the fields of each answer; a name from DIALECTS reads only that one; a
      callable is a parser of your own, from an Answer (with all its fields) to a ServerHint or None.
    - `max_hold`: the longest hold, except for an exhausted account.

    It does no I/O and has no clock; it keeps the incidents of at most 1,024 keys and scopes. It can be shared
    by threads and copied to processes. Each policy uses its own copy, so policies do not share incidents.
    """

    def __init__(self, dialect: str | Parser = "auto", *, max_hold: Duration = "15m") -> None:
        self.dialect = dialect
        """The dialect or parser given."""
        self._dialects = _chosen(dialect)
        fields = (field for dialect in self._dialects for field in dialect.reads)
        self._wanted = None if callable(dialect) else wanted(fields)
        self._sells_models = isinstance(dialect, str) and dialect in FAMILIES
        self.max_hold_s = duration_us("max_hold", max_hold, least=1_000) / SECOND_US
        """The longest hold, in seconds."""
        self._forget_all()
        forgets(self, Feedback._forget_all)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy starts without incidents: it is for another process, or for another policy.
        self.__dict__.update(state)
        self._forget_all()
        forgets(self, Feedback._forget_all)

    def _forget_all(self) -> None:
        self._incidents = Incidents()

    def read(
        self,
        status: int,
        headers: Headers,
        *,
        sent_at: float,
        received_at: float,
        key: str = "default",
        path: str = "",
        body: object = None,
    ) -> ServerHint | None:
        """Read the answer to a request under `key`; None if it says nothing about limits.

        `sent_at` is when the request left, `received_at` when its answer came, in epoch seconds of the wall
        clock. `path` is that of the request, for scopes that depend on it. `body`, if it was read, is JSON
        text as bytes, or what was parsed from it.
        """
        error = error_of(status, body)
        # A challenge to pay is in fields that no dialect reads.
        lines = picked(headers, None if status == PAYMENT_REQUIRED else self._wanted)
        if (
            status not in (REFUSED, PAYMENT_REQUIRED)
            and error is None
            and self._wanted is not None
            and says_nothing(lines)
        ):
            self._succeeded(status, key, None, sent_at)
            return None
        answer = heard(status, lines, received_at, error, path)
        if _refusal(answer) is not None:
            return None
        hint, first_hold_s = self._parsed(answer)
        stated_s = self._within(_wait_s(answer, hint))
        if answer.age_s and stated_s == 0:
            return None if hint == SAYS_NOTHING else hint._replace(hold_s=0.0)
        if self._is_exhausted(answer, hint):
            probe = FIRST_PROBE_S, LONGEST_PROBE_S
            hold_s = self._incidents.unhinted((key, ACCOUNT), *probe, sent_at, received_at)
            return hint._replace(hold_s=hold_s, scope=None, exhausted=True)
        place, hold_s = (key, hint.scope), stated_s
        if hold_s > 0:
            self._incidents.hinted(place, hold_s, received_at)
        elif status == REFUSED:
            steps = first_hold_s, self.max_hold_s
            hold_s = self._incidents.unhinted(place, *steps, sent_at, received_at)
        else:
            self._succeeded(status, *place, sent_at)
        if hold_s == 0 and hint == SAYS_NOTHING and status != REFUSED:
            return None
        return hint._replace(hold_s=hold_s)

    def stated(self, status: int, headers: Headers, received_at: float) -> float:
        """The hold that an answer asks for itself; 0 if none."""
        answer = heard(status, picked(headers, self._wanted), received_at)
        return self._within(_wait_s(answer, self._parsed(answer)[0]))

    def says_more(self, status: int, headers: Headers, received_at: float, body: object) -> bool:
        """Whether a body, read later than the headers, adds something to what they said."""
        error = error_of(status, body)
        if error is None:
            return False
        if says_exhausted(status, error):
            return True
        lines = picked(headers, self._wanted)
        before, after = heard(status, lines, received_at), heard(status, lines, received_at, error)
        return before.retry_s != after.retry_s or self._parsed(before) != self._parsed(after)

    def hears_nothing(self, status: int, headers: Iterable[Any]) -> bool:
        """Whether `read` would return None and change nothing: a quick first look.

        `headers` are (name, value) pairs, or names alone.
        """
        if status in STATUSES or self._wanted is None or self._incidents.known:
            return False
        texts, encoded, _, lengths = self._wanted
        for line in headers:
            name = line if line.__class__ is str else line[0]
            # Most names have another length, which is cheaper to compare.
            if len(name) in lengths and name.lower() in (encoded if name.__class__ is bytes else texts):
                return False
        return True

    def bounded(self, hint: ServerHint) -> ServerHint:
        """Bound the hold of a hint from elsewhere: 0, or from a millisecond to `max_hold`."""
        return hint._replace(hold_s=self._within(hint.hold_s))

    def _is_exhausted(self, answer: Answer, hint: ServerHint) -> bool:
        if says_exhausted(answer.status, answer.error) or hint.exhausted:
            return True
        return (
            self._sells_models
            and answer.status == PAYMENT_REQUIRED
            and answer.retry_s is None
            # A JSON body says so itself, once it is read.
            and answer.error is None
            and "json" not in answer.fields.get("content-type", "").lower()
            and answer.fields.keys().isdisjoint(CHALLENGES)
        )

    def _succeeded(self, status: int, key: str, scope: str | None, sent_at: float) -> None:
        if self._incidents.known and status < _SUCCESS_BELOW:
            for ended in {scope, None, ACCOUNT}:
                self._incidents.over((key, ended), sent_at)

    def _within(self, hold_s: float) -> float:
        # In this form, NaN gives no hold.
        return min(hold_s, self.max_hold_s) if hold_s >= _LEAST_HOLD_S else 0.0

    def _parsed(self, answer: Answer) -> tuple[ServerHint, float]:
        dialects = () if answer.age_s and self._wanted is not None else self._dialects
        for dialect in dialects:
            if not dialect.marks or not answer.fields.keys().isdisjoint(dialect.marks):
                hint = dialect.parse(answer)
                if hint is not None:
                    return hint, dialect.first_hold_s
        return SAYS_NOTHING, FIRST_HOLD_S

    def __repr__(self) -> str:
        return f"Feedback({self.dialect!r}, max_hold={self.max_hold_s:g})"


def _chosen(dialect: str | Parser) -> tuple[Dialect, ...]:
    if callable(dialect):
        return (Dialect(partial(_hint_from, dialect)),)
    if dialect == "auto":
        return tuple(DIALECTS.values())
    name = one_of("dialect", dialect, ("auto", *DIALECTS))
    return (DIALECTS[name]._replace(marks=()),)


def _hint_from(parser: Parser, answer: Answer) -> ServerHint | None:
    """The hint of a user's parser."""
    hint: object = parser(answer)
    if hint is None or (
        isinstance(hint, ServerHint)
        and isinstance(hint.hold_s, int | float)
        and isinstance(hint.scope, str | None)
    ):
        return hint
    bound = "is no ServerHint with hold_s in seconds and a scope of text, and a parser gave it"
    raise ConfigError("feedback", hint, bound, "return ServerHint(hold_s=2.5), or None")


def _wait_s(answer: Answer, hint: ServerHint) -> float:
    """The wait that the answer itself asks for; 0 if none."""
    waits_s = [hint.hold_s]
    if answer.status in (REFUSED, PAYMENT_REQUIRED, *UNAVAILABLE):
        waits_s.append(answer.retry_s or 0.0)
    # A dialect that asks for a hold, however short, has already taken the reset into account.
    is_spent = hint.remaining == 0 or (answer.status == REFUSED and hint.remaining is None)
    if is_spent and not hint.hold_s > 0.0:
        waits_s.append(hint.reset_s or 0.0)
    return next((hold_s for hold_s in waits_s if hold_s >= _LEAST_HOLD_S), 0.0)


# Refusals by shapekit, which a wrapper may return in place of the server's answer.

_OWN_FIELDS = wanted(())


class OwnRefusal(NamedTuple):
    """A refusal of shapekit, raised as an error or returned as a 429."""

    code: str
    """The code of the error."""
    retry_after: float
    """Seconds until the same call may pass."""

    @property
    def is_exhausted(self) -> bool:
        """Whether a quota or an account is spent."""
        return self.code in (QuotaExhaustedError.code, AccountExhaustedError.code)


def own_refusal(status: int, headers: Headers) -> OwnRefusal | None:
    """The refusal that a 429 of shapekit stands for; None if the answer is the server's."""
    # The time matters only for dates, and shapekit's 429 states seconds.
    return _refusal(heard(status, picked(headers, _OWN_FIELDS), 0.0)) if status == REFUSED else None


def _refusal(answer: Answer) -> OwnRefusal | None:
    code = answer.fields.get(OURS.lower())
    return OwnRefusal(code, answer.retry_s or 0.0) if code is not None and answer.status == REFUSED else None


# Exhausted accounts are often refused with a 429, as too many calls are. But an account with nothing left is
# refused until its owner pays, raises a limit, or a new month begins; only the body of the answer says so.

PAYMENT_REQUIRED = 402
STATUSES = frozenset({400, PAYMENT_REQUIRED, 403, 429})
"""The statuses with which servers refuse an exhausted account."""
MOST_BYTES = 16_384
"""The longest body that is parsed."""

CODES = frozenset(
    {
        # OpenAI, and servers that speak like it.
        "insufficient_quota",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "project_spend_limit_exceeded",
        "billing_hard_limit_reached",
        "billing_not_active",
        # Anthropic.
        "billing_error",
    }
)
"""The `code` or `type` of errors of an exhausted account. No server uses them for a rate limit."""

_CREDIT = "credit balance is too low"
"""Anthropic's message without credit, which often comes as a 400 of the type `invalid_request_error`."""

_NO_FUNDS = ("insufficient balance", "insufficient credits")
"""In the messages of DeepSeek and OpenRouter, with a 402. Stripe's `card_error` has that status, too, and is
about one payment.
"""

CHALLENGES = ("www-authenticate", "payment-required")
"""The fields of a 402 that asks for the payment of one request, which a client may make and send with it."""


def error_of(status: int, body: object) -> Mapping[str, Any] | None:
    """The error in a JSON body, as bytes or parsed; None if there is none, or the status is another."""
    if status not in STATUSES:
        return None
    if isinstance(body, bytes):
        if len(body) > MOST_BYTES:
            return None
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    if isinstance(body, list) and body:
        body = body[0]  # so Google refuses a request for a stream
    # The SDK of OpenAI keeps only the error.
    error = body.get("error", body) if isinstance(body, Mapping) else None
    return error if isinstance(error, Mapping) else None


def says_exhausted(status: int, error: Mapping[str, Any] | None) -> bool:
    """Whether the error of an answer says that the account has nothing left to spend."""
    if error is None:
        return False
    code, kind, message = (error.get(name) for name in ("code", "type", "message"))
    if any(isinstance(value, str) and value in CODES for value in (code, kind)):
        return True
    text = message.lower() if isinstance(message, str) else ""
    return _CREDIT in text or (status == PAYMENT_REQUIRED and any(phrase in text for phrase in _NO_FUNDS))
