"""Reports for people: what each theorem would certify (``plan``), and the papers' figures beside ours (``figures``)."""
