"""Parse what servers say about their limits: pure functions of a status, headers and times."""

from shapekit.feedback.dialects import DIALECTS, Answer, ServerHint, shopify_graphql
from shapekit.feedback.feedback import Feedback

__all__ = ["DIALECTS", "Answer", "Feedback", "ServerHint", "shopify_graphql"]
