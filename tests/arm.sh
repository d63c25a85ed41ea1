#!/bin/bash
# The library on Arm, on an x86 machine: cross-compiled, and run by QEMU. `make test-arm` calls this. What it needs besides
# comes by apt and pip into build/arm: Debian's Python for Arm, and PyTorch. PyPI's PyTorch for Arm brings CUDA along: 2.3 GB
# to fetch, 5 GB there, and under emulation a minute or more to import.
#   tests/arm.sh            each set's functions, threads on three processors, `python -m layernorm doctor --check`
#   tests/arm.sh sets       the first two alone: no Python, no PyTorch
#   tests/arm.sh whole      all of it, and the tests in TESTS (default: tests/native tests/nn)
set -e -o pipefail
cd "$(dirname "$0")/.."
part=${1:-short}
[[ $part =~ ^(sets|short|whole)$ ]] || { echo "tests/arm.sh [sets|short|whole], got '$part'"; exit 2; }
here=$PWD/build/arm native=src/layernorm/engines/native
compiler=aarch64-linux-gnu-g++
processors=(cortex-a76 neoverse-n1 max)  # the last has every instruction that QEMU knows
mkdir -p "$here"

step() {  # step NAME COMMAND...: its output goes to a file, which is shown if it fails
    local name=$1 began=$SECONDS log="$here/${1// /-}.log" status=0
    shift
    set +e  # in an `if` a function would go on after a command that fails
    (set -e; "$@") > "$log" 2>&1
    status=$?
    set -e
    if [ $status = 0 ]; then echo "ok      $((SECONDS - began)) s  $name: $(tail -1 "$log")"
    else
        tail -40 "$log"
        echo "FAILED  $((SECONDS - began)) s  $name: all of it is in $log"
        exit 1
    fi
}

missing=""
for tool in $compiler:g++-aarch64-linux-gnu qemu-aarch64:qemu-user cmake:cmake; do
    command -v "${tool%%:*}" > /dev/null || missing+=" ${tool##*:}"
done
[ -z "$missing" ] || { echo "missing: apt-get install$missing"; exit 1; }
known=$(qemu-aarch64 -cpu help || true)
for processor in "${processors[@]}"; do
    grep -qw -- "$processor" <<< "$known" ||
        { echo "$(qemu-aarch64 --version | head -1) does not know $processor: a QEMU of 7.2 or newer is needed"; exit 1; }
done

# The flags that CMake gives the kernels of each set.
cmake -S . -B "$here/library" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=$compiler \
    -DLAYERNORM_SETS=all -DLAYERNORM_TESTED=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON > "$here/cmake.log"
program() {  # program FILE SET FLAGS...: compiled to build/arm/FILE-SET
    local of_set
    of_set=$(sed -n "s/.*\"command\": \"[^ ]* \(.*LAYERNORM_ISA=$2 .*\) -o .*kernels.cpp\".*/\1/p" "$here/library/compile_commands.json")
    nice $compiler -std=c++17 $of_set "${@:3}" -static -pthread "tests/native/$1.cpp" -o "$here/$1-$2"
}
sets=$(sed -n 's/.*LAYERNORM_ISA=\([^ ]*\) .*kernels.cpp".*/\1/p' "$here/library/compile_commands.json")  # the best first
each_set() {
    for isa in $sets; do
        program each_set $isa -O2
        qemu-aarch64 -cpu max "$here/each_set-$isa"
    done
    echo $sets
}
threads() {  # the set that each processor takes
    local processor isa took=""
    nice $compiler -static $native/sets_here.cpp -o "$here/sets_here"
    for processor in "${processors[@]}"; do
        isa=$(qemu-aarch64 -cpu "$processor" "$here/sets_here" $sets | cut -d';' -f1)
        [[ $took == *": $isa"$'\n'* ]] || program threads "$isa" -O1
        qemu-aarch64 -cpu "$processor" "$here/threads-$isa"
        took+="$processor: $isa"$'\n'
    done
    echo $took
}
step "each set" each_set
step "threads" threads
[ "$part" != sets ] || exit 0

library() {
    nice cmake --build "$here/library" -j"$(nproc)"
    rm -rf "$here/package"
    mkdir "$here/package"
    cp -r src/layernorm "$here/package"
    find "$here/package" -name '*.so' -delete
    cp "$here/library/engine/liblayernorm_native.so" "$here/package/layernorm/engines/native"
    echo "every set"
}

debian() {  # packages for Arm by an apt of its own: this machine's lists and architectures stay as they are
    mkdir -p "$here"/apt/{lists/partial,archives/partial}
    touch "$here/apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main" \
        > "$here/apt/sources.list"
    cat > "$here/apt/apt.conf" << END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir::State "$here/apt";
Dir::State::status "$here/apt/status";
Dir::Cache "$here/apt";
Dir::Etc::sourcelist "$here/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
END
    export APT_CONFIG="$here/apt/apt.conf"
    apt-get update
    apt-get install --download-only --yes --no-install-recommends python3.11-minimal libpython3.11-stdlib libstdc++6
    mkdir -p "$here/debian"
    for package in "$here"/apt/archives/*.deb; do dpkg -x "$package" "$here/debian"; done
    unset APT_CONFIG
    # Programs that tests start are run by QEMU, too: it is no part of the system's, which would start them by itself.
    cat > "$here/python" << END
#!/bin/bash
exec qemu-aarch64 -cpu max -L $here/debian -E PYTHONPATH="\${PYTHONPATH:+\$PYTHONPATH:}$here/package:$here/site" \\
    $here/debian/usr/bin/python3.11 "\$@"
END
    chmod +x "$here/python"
    "$here/python" -c "import platform; print('Python', platform.python_version(), platform.machine())"
}
packages() {
    local platforms=()
    rm -rf "$here/site"
    for minor in {17..36}; do platforms+=(--platform "manylinux_2_${minor}_aarch64"); done
    PIP_CONSTRAINT=/dev/null ${PYTHON:-python3} -m pip install --no-compile --target "$here/site" "${platforms[@]}" \
        --platform manylinux2014_aarch64 --only-binary :all: --python-version 3.11 \
        "torch==$(sed -n 's/^OLDEST = "\(.*\)"/\1/p' src/layernorm/_torch.py).0" numpy pytest pytest-timeout pytest-xdist hypothesis scikit-learn
    echo "import sys; sys.executable = '$here/python'" > "$here/site/sitecustomize.py"
    touch "$here/.packages"
    "$here/python" -c "import torch; print('PyTorch', torch.__version__)"
}
step "library" library
[ -x "$here/python" ] || step "Python for Arm" debian
[ -e "$here/.packages" ] || step "packages for Arm" packages
export OMP_NUM_THREADS=1
step "doctor" "$here/python" -m layernorm doctor --check
[ "$part" != short ] || exit 0

export CXX=$compiler PYTHONPATH=tests
# QEMU ends where a process with threads forks, and gives a program memory that no machine has. PyTorch itself has no LSTM
# in float16 there, and its int8 does not know the emulated processor.
step "tests" "$here/python" -m pytest -q -m 'not long' -o timeout=3000 --numprocesses "$(nproc)" \
    --deselect tests/native/test_library.py::test_fork_after_use \
    --deselect tests/native/test_plan.py::test_a_result_that_no_memory_has_room_for_is_an_error \
    --deselect tests/native/test_plan.py::test_no_memory_for_the_result_of_a_norm \
    --deselect "tests/nn/test_autocast.py::test_types_are_those_of_the_table_and_torchs[torch.float16]" \
    --deselect tests/nn/test_portable.py::test_quantize_dynamic_leaves_these_modules_alone \
    --deselect tests/nn/test_quantize.py::test_torchs_quantisation_of_the_rest ${TESTS:-tests/native tests/nn}
