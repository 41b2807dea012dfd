"""Report pages: HTML files that hold all they need, so that they can be sent by mail."""
