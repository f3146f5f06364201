"""What servers say about their limits, parsed: pure functions of a status, headers and times."""

from shapekit.feedback.answer import Answer
from shapekit.feedback.dialects import DIALECTS
from shapekit.feedback.feedback import Feedback
from shapekit.feedback.hint import ServerHint
from shapekit.feedback.shopify import shopify_graphql

__all__ = ["DIALECTS", "Answer", "Feedback", "ServerHint", "shopify_graphql"]
