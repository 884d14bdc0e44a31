/* Runs a function that CasADi generated, and prints the time of a call in microseconds:
 *   time_casadi CALLS inputs outputs
 * The files hold the doubles of its argument and of its result. examples/mpc.py compiles it. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef long long integer;
int stages(const double** arguments, double** results, integer* integers, double* work, int memory);
int stages_work(integer* arguments, integer* results, integer* integers, integer* work);
const integer* stages_sparsity_in(integer index);
const integer* stages_sparsity_out(integer index);

static double microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e6 + now.tv_nsec * 1e-3;
}

int main(int count, char** strings) {
  if (count != 4) {
    fprintf(stderr, "time_casadi CALLS INPUTS OUTPUTS\n");
    return 2;
  }
  integer of_arguments, of_results, of_integers, of_work;
  stages_work(&of_arguments, &of_results, &of_integers, &of_work);
  const double** arguments = calloc(of_arguments + 1, sizeof(double*));
  double** results = calloc(of_results + 1, sizeof(double*));
  integer* integers = calloc(of_integers + 1, sizeof(integer));
  double* work = calloc(of_work + 1, sizeof(double));
  const integer* sizes = stages_sparsity_in(0);
  const size_t inputs = sizes[0] * sizes[1];
  sizes = stages_sparsity_out(0);
  const size_t outputs = sizes[0] * sizes[1];
  double* input = calloc(inputs, sizeof(double));
  double* output = calloc(outputs, sizeof(double));
  FILE* file = fopen(strings[2], "rb");
  if (!file || fread(input, sizeof(double), inputs, file) != inputs) {
    fprintf(stderr, "%s does not hold %zu doubles\n", strings[2], inputs);
    return 1;
  }
  fclose(file);
  const int calls = atoi(strings[1]);
  double best = 1e30;
  for (int round = 0; round < 7; ++round) {
    const double start = microseconds();
    for (int call = 0; call < calls; ++call) {
      arguments[0] = input; /* the function may use the arrays of pointers as its own */
      results[0] = output;
      stages(arguments, results, integers, work, 0);
    }
    const double passed = (microseconds() - start) / calls;
    best = passed < best ? passed : best;
  }
  file = fopen(strings[3], "wb");
  if (!file || fwrite(output, sizeof(double), outputs, file) != outputs || fclose(file)) {
    fprintf(stderr, "%s can't be written\n", strings[3]);
    return 1;
  }
  printf("%f\n", best);
  return 0;
}
