"""Block lines to one Arrow table per entity, in the wire's forms"""
