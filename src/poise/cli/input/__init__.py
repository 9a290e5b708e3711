"""What commands read: options, labelled images, and the options of servers."""
