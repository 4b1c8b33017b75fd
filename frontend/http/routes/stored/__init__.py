"""POST /v1/responses with stored responses, and the routes of stored responses."""
