"""Operations with several implementations: what there is to choose from, and the choice."""
