"""mp-spawn works without ray: it is not imported, and engine="ray" says how to get it."""

from __future__ import annotations

from pathlib import Path

from support.scripts import run_script, succeeded


def test_ray_is_not_imported_and_its_absence_is_explained(tmp_path: Path) -> None:
    program = """
        import sys

        sys.modules["numpy"] = sys.modules["ray"] = None  # an import of either fails
        import mp_spawn
        import mp_nodes as engines

        if __name__ == "__main__":
            print(mp_spawn.run(divmod, (2,), nprocs=4, engine=engines.Local(nodes=2)))
            try:
                mp_spawn.run(divmod, (2,), nprocs=4, engine="ray")
            except engines.EngineError as error:
                print(error)
            import mp_nodes.engines.ray
    """
    out = succeeded(run_script(tmp_path, program)).splitlines()
    assert out[0] == "[(0, 0), (0, 1), (1, 0), (1, 1)]"
    assert out[1] == "engine='ray' needs ray, which is not installed: pip install \"mp-nodes[ray]\""
