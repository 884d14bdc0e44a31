"""pypose patches torch.func within a context that preserves the LieTensor class."""

import pytest
import torch
import torch.func

import torchlayers as tl
from tests.packages import agree_in, package
from tests.support.calls import agree

pypose = package("pypose")

POSES = {
    "SE3": pypose.randn_SE3,
    "SO3": pypose.randn_SO3,
    "Sim3": pypose.randn_Sim3,
    "se3": pypose.randn_se3,
}


@pytest.mark.parametrize("kind", POSES)
def test_vmap_preserves_poses(kind):
    poses = POSES[kind](5)

    def mapped(lib):
        with pypose.retain_ltype():
            return lib.vmap(lambda pose: pose.Inv().tensor())(poses)

    torch.testing.assert_close(agree(mapped), poses.Inv().tensor())


@pytest.mark.parametrize("kind", POSES)
def test_jacrev_of_a_pose(kind):
    pose = POSES[kind](1)

    def jacobian(lib):
        with pypose.retain_ltype():
            return lib.jacrev(lambda pose: pose.Inv().tensor())(pose)

    agree(jacobian)


def test_pypose_s_own_jacrev():
    pose, points = pypose.randn_SE3(1), torch.rand(1, 3)
    agree_in(pypose)(lambda: pypose.func.jacrev(lambda pose: pose @ points)(pose))
    agree_in(pypose)(lambda: pypose.func.jacrev(lambda pose: pose @ points, chunk_size=2)(pose))


def test_jvp_preserves_poses():
    pose = pypose.randn_SE3(2)

    def pushed(lib):
        with pypose.retain_ltype():
            return lib.jvp(lambda pose: pose.tensor().sin(), (pose,), (torch.ones(2, 7),))

    agree(pushed)


@pytest.mark.parametrize("jacobian", ["modjacrev", "modjacfwd"])
def test_a_module_s_jacobians(jacobian):
    module, inputs = torch.nn.Linear(3, 2).requires_grad_(False), torch.rand(4, 3)
    agree_in(pypose)(lambda: getattr(pypose.optim.functional, jacobian)(module, inputs))


def test_outside_pypose_s_context_the_pose_is_a_tensor():
    with pytest.raises(Exception, match=r"Expected size|Invalid LieTensor Type"):
        tl.vmap(pypose.Inv)(pypose.randn_SE3(5))
