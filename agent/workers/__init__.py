"""The workers of one host: started, watched over and examined at their end."""
