"""What the time of a run goes into, as a fold of decisions and of what agents say."""
