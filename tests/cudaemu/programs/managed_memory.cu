// Managed memory: a linked list with strings that host and device both walk and change; hints that may be ignored.
// Run: cudaemu managed_memory.cu
// Prints: list of 12 nodes: 554 letters
#include <cstring>
#include <new>

#include "check.h"

struct Managed {
  void *operator new(size_t bytes) {
    void *at = nullptr;
    CUDA(cudaMallocManaged(&at, bytes));
    return at;
  }
  void operator delete(void *at) { CUDA(cudaFree(at)); }
};
struct Text : Managed {
  char *letters;
  size_t length;
  explicit Text(const char *from) : length(std::strlen(from)) {
    CUDA(cudaMallocManaged(&letters, length + 1));
    std::strcpy(letters, from);
  }
  ~Text() { CUDA(cudaFree(letters)); }
};
struct Node : Managed {
  Text text;
  Node *next;
  int visits = 0;
  Node(const char *from, Node *next) : text(from), next(next) {}
};

__device__ __managed__ unsigned long long letters;

__global__ void shout(Node *list) {
  for (Node *node = list; node; node = node->next) {
    for (size_t i = threadIdx.x; i < node->text.length; i += blockDim.x) {
      char &c = node->text.letters[i];
      if (c >= 'a' && c <= 'z') c += 'A' - 'a';
    }
    if (threadIdx.x == 0) node->visits += 1, atomicAdd(&letters, node->text.length);
  }
}

int main() {
  Node *list = nullptr;
  for (int i = 0; i < 12; ++i) {
    char text[64];
    std::snprintf(text, sizeof text, "node number %d has a line of its own, and %s", i, i % 2 ? "is odd" : "even");
    list = new Node(text, list);
  }
  const cudaMemLocation device = {cudaMemLocationTypeDevice, 0};
  CUDA(cudaMemAdvise(list, sizeof *list, cudaMemAdviseSetPreferredLocation, device));
  CUDA(cudaMemPrefetchAsync(list, sizeof *list, device, 0));
  shout<<<1, 32>>>(list);
  shout<<<1, 32>>>(list);
  CUDA(cudaDeviceSynchronize());
  int count = 0;
  for (const Node *node = list; node; node = node->next, ++count) {
    MUST(node->visits == 2 && !std::strncmp(node->text.letters, "NODE NUMBER ", 12));
    for (const char *c = node->text.letters; *c; ++c) MUST(*c < 'a' || *c > 'z');
  }
  while (list) {
    Node *const next = list->next;
    delete list;
    list = next;
  }
  std::printf("list of %d nodes: %llu letters\n", count, letters / 2);
}
