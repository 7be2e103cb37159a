"""Forms of questions: the words around a title and what is asked of it."""

NAMED = (
    "What is the {phrase} of {title}?",
    "How is {phrase} related to {title}?",
    "What about {phrase} in {title}?",
    "{title} {phrase}",
    "What does {title} have to do with {phrase}?",
)
"""Forms of a question of a title and a phrase."""

ASKED = (
    "what is the {attribute} of {title}",
    "what was the {attribute} of {title}",
    "{title} {attribute}",
    "what is known about the {attribute} of {title}",
)
"""Forms of a question of what a passage is about, which it may name in other words or not at all."""

OF_THING = (
    *("meaning", "definition", "history", "origin", "purpose", "location", "size", "cost", "capital"),
    *("author", "creator", "director", "founder", "owner", "genre", "release date", "cast", "plot"),
    *("population", "theme", "headquarters", "opening date", "height", "cause", "effect", "example"),
    *("importance", "members", "leader"),
)
"""What people want to know of a thing."""

OF_PERSON = (
    *("occupation", "profession", "nationality", "birthplace", "date of birth", "age", "spouse", "parents"),
    *("career", "education", "religion", "cause of death", "hometown", "claim to fame", "role", "party"),
)
"""What people want to know of a person."""

ALIKE = (
    "What is the difference between {one} and {other}?",
    "Are both {one} and {other} {kind}?",
    "Which {noun} is {what}, {one} or {other}?",
)
"""Forms of a question of two passages."""
