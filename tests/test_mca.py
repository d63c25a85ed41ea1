"""`benchmarks/mca.py`: what of a compiled function it gives to a model of processors."""

from support.repository import loaded


def test_the_loop_that_a_model_is_given():
    """The innermost loop with the most work, without its branch. Code behind a function's end is none."""
    mca = loaded("benchmarks/mca.py")
    assembly = """
hot:
	.quad	_function
_function:
.L1:
	movq	%rax, %rcx
.L2:
	vfmadd231ps	(%rax), %ymm1, %ymm2
	vmovaps	%ymm2, 32(%rsp)
	vmovaps	(%rsp), %ymm3
	jne	.L2
	subq	$1, %rdx
	jne	.L1
.L3:
	ret
.L4:
	vfmadd231ps	(%rax), %ymm1, %ymm2
	vfmadd231ps	(%rax), %ymm1, %ymm3
	jne	.L3
	.size	_function, .-_function
"""
    (loop,) = mca.loops_of(assembly, "hot")
    assert [line.split()[0] for line in loop.body] == ["vfmadd231ps", "vmovaps", "vmovaps"]
    assert loop.operations == 16
    assert loop.on_the_stack() == (1, 1)
