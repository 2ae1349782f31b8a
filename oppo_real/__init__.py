"""The real backend: the policies of ``oppo_sim``, unchanged, over engines with real weights. Needs the extra
``[torch]`` or ``[vllm]``."""
