import openai
import pytest

from cluster import running_cluster


@pytest.fixture(scope="session")
def cluster():
    """Two prefill and two decode nodes, shared by the tests that leave them as they found them."""
    with running_cluster(prefill=2, decode=2) as running:
        yield running


@pytest.fixture(scope="session")
def client(cluster):
    return openai.OpenAI(base_url=cluster.router.url("/v1"), api_key="none", max_retries=0, timeout=60)
