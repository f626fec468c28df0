"""What must hold in every world, and mistakes that show whether it is looked at."""
