"""The tables of measured kernels that come with the package: of the shipped scenarios and common models.

python experiments/make_kernel_tables.py    # needs the extra 'kernels'; what does not change is left alone
"""

from oppo_sim.costs.devices import find_device
from oppo_sim.costs.kernels.composed_config import ComposedCostConfig, roofline_engines
from oppo_sim.costs.kernels.devices import KernelSource
from oppo_sim.costs.kernels.lookup import query_of
from oppo_sim.costs.kernels.make import make_table
from oppo_sim.costs.kernels.table import SHIPPED_FOLDER, KernelQuery, load_table, save_table
from oppo_sim.costs.models import MODELS
from oppo_sim.costs.roofline_engine import RooflineEngine
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.load import load_scenario, shipped_scenarios

COMMON = ("qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen2.5-14b", "qwen3-8b", "llama-3.1-8b")
DEVICES = ("A100-80", "H100", "H200")
DEGREES = (1, 2, 4)


def wanted() -> dict[str, KernelQuery]:
    """By file name."""
    engines = [
        RooflineEngine(MODELS[name], find_device(device), degree)
        for name in COMMON
        for device in DEVICES
        for degree in DEGREES
    ]
    for name in shipped_scenarios():
        scenario = load_scenario(name)
        # A scenario of rooflines, such as the paper's, needs none; and a reward model in float32 has none.
        if isinstance(scenario.costs, ComposedCostConfig):
            engines += roofline_engines(scenario.costs, cost_context(scenario), scenario.base_dir).values()
    queries = (query_of(engine, KernelSource()) for engine in engines)
    return {query.name: query for query in queries}


def main() -> None:
    SHIPPED_FOLDER.mkdir(exist_ok=True)
    tables = wanted()
    for path in SHIPPED_FOLDER.glob("*.json.gz"):
        if path.name not in tables:
            path.unlink()
            print(f"{path.name}: no longer shipped")
    for name, query in tables.items():
        path, table = SHIPPED_FOLDER / name, make_table(query)
        if path.exists():
            old = load_table(path)
            dated = table.origin.model_copy(update={"made": old.origin.made})
            if old == table.model_copy(update={"origin": dated}):
                continue
        save_table(table, SHIPPED_FOLDER)
        print(f"{name}: made")


if __name__ == "__main__":
    main()
