"""The chat page. Open page_files.py first, then static/app.js."""
