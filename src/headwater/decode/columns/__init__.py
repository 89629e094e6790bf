"""Converts wire forms to typed Arrow columns, and applies the portal's filters again."""
