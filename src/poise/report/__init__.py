"""Tables, figures, one HTML page and exports, all made from records alone; percent exists only here."""
