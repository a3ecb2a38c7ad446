// What compute-sanitizer 13.0's racecheck says of a kernel without a race, in which some warps of a block wait for each other.
//
//     nvcc -arch=sm_90a -lineinfo racecheck.cu -o racecheck && compute-sanitizer --tool racecheck ./racecheck
//
// Four warps bring numbers to one of two stages and wait for each other on the way; four others read the stage that was
// brought before. Between a stage's stores and its loads, and between these and the stores two turns on, the whole block
// meets. So are `place_prefetched` and `outputs_of` of crates/hecate-cuda/src/linear/chunk_bf16/reverse.cu.
#include <cstdio>

__global__ void two_stages(float* out, int turns) {
    __shared__ float most[4], stage[2][128];
    const int who = threadIdx.x % 128;
    const bool brings = threadIdx.x >= 128;
    float sum = 0.0f;
    for (int turn = 0; turn < turns; turn++) {
        if (brings) {
            if (who % 32 == 0) most[who / 32] = turn + who;
            asm volatile("bar.sync 1, 128;" ::: "memory");
            stage[turn % 2][who] = most[0] + most[3 - who / 32];
        }
        __syncthreads();
        if (!brings) sum += stage[turn % 2][127 - who];
    }
    if (!brings) out[who] = sum;
}

int main() {
    float *out, host[128];
    cudaMalloc(&out, sizeof(host));
    two_stages<<<1, 256>>>(out, 64);
    cudaMemcpy(host, out, sizeof(host), cudaMemcpyDeviceToHost);
    printf("%g %s\n", host[0], cudaGetErrorString(cudaGetLastError()));
}
