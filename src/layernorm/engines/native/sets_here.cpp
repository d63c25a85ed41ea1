// Prints those of its arguments that name an instruction set of the processor at hand.
#include <stdio.h>

#include "processor.h"

int main(int count, char **names) {
    for (int i = 1; i < count; ++i)
        if (runs(names[i])) printf("%s;", names[i]);
}
