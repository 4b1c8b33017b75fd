"""POST /v1/responses where responses are stored, and the routes of those that are."""
