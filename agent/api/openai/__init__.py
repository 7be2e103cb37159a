"""The routes of OpenAI's API, which its clients call unchanged."""
