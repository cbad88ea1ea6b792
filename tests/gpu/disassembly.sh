#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Looks into the machine code of the CUDA ops for what no run may show:
#   - a fault of ptxas of CUDA 13.0: an asynchronous copy (LDGSTS) that has lost its global address, an illegal instruction;
#   - block and coded kernels without warpgroup products (HGMMA) or bulk copies (UTMALDG, UBLKCP).
# Usage: sh tests/gpu/disassembly.sh FILE...   objects or archives; cuobjdump is $CUOBJDUMP or the one on the PATH.
# cuobjdump calls nvdisasm. PyPI has both as programs of their own: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm.
# Exit: 0 nothing found, 1 something found, 77 no cuobjdump here
set -u
tool=${CUOBJDUMP:-cuobjdump}
command -v "$tool" >/dev/null 2>&1 || { echo "disassembly.sh: no $tool here: skipped"; exit 77; }

# A good copy names shared and global memory: LDGSTS.E.BYPASS.128 [R8+0x10], desc[UR4][R2.64].
look() {
    awk '
        function close_kernel() {
            if (kernel ~ /attention_(block|coded)/ && (!products || !copies)) {
                printf "FAIL %s: %d warpgroup products, %d bulk copies\n", kernel, products, copies; bad++
            }
        }
        /Function : / { close_kernel(); kernel = $NF; kernels++; products = copies = 0 }
        /HGMMA/ { products++ }
        /UTMALDG|UBLKCP/ { copies++ }
        /LDGSTS/ && !/desc\[UR[0-9]+\]\[R[0-9]+/ { printf "FAIL %s: %s\n", kernel, $0; bad++ }
        END { close_kernel(); printf "%d kernels looked at\n", kernels; exit bad > 0 || kernels == 0 }'
}

# What it is made to find, it must find.
printf '%s\n' 'Function : attention_columns' 'LDGSTS [R8+UR0], desc[UR1] ;' | look >/dev/null && { echo "FAIL the fault is not found"; exit 1; }
printf '%s\n' 'Function : attention_block' 'HMMA.16816.F32 R4, R8, R12, R4 ;' | look >/dev/null && { echo "FAIL missing products are not found"; exit 1; }

status=0
for file in "$@"; do
    "$tool" -sass "$file" | look || status=1
done
exit $status
