"""`/console`: pages for people, rendered by the service itself; what they do goes through the same handlers.

A page needs the key that the API needs: a form keeps it in a cookie that scripts cannot read and other
sites cannot send. There is no state besides the log, so that any replica answers.
"""
