"""`/console`: pages for people, rendered by the service; their actions go through the handlers of the API.

Pages need the same keys as the API: a login form stores the key in a cookie that scripts cannot read and
other sites cannot send. All state is in the log, so that any replica answers.
"""
