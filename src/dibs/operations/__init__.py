"""The verbs as scripts: generators that ask a store questions and judge what comes back."""
