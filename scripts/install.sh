# Sourced by quickstart.sh and check.sh: install Debian packages that are missing.
BUILD_PACKAGES="gcc libc6-dev make meson ninja-build pkg-config python3 libxml2-dev libglpk-dev libjansson-dev libyajl-dev zlib1g-dev libopenblas-dev"
TEST_PACKAGES="g++ clang libclang-rt-14-dev libopenmpi-dev openmpi-bin python3-numpy python3-jsonschema coinor-cbc git iproute2 jing"
# For the tests of report.html in a browser; without them those are skipped.
BROWSER_PACKAGES="chromium chromium-driver python3-selenium"
# For the test of run.sbatch on a Slurm of one machine; without them it is skipped.
SLURM_PACKAGES="slurmctld slurmd slurm-client munge"
# For the tests of --export dot and of the completions; without them parts of those are skipped.
EXPORT_PACKAGES="graphviz zsh groff-base"

install_packages() {
    local missing=() p
    for p in "$@"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    local sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    echo "installing ${missing[*]}"
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
