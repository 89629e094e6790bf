"""Wire forms to typed Arrow columns, a column at a time; the portal's filters, applied again"""
