"""What needs Ray (extra ``ray``) and no engine."""
