"""Programs of MSCCL and RCCL (XML) as collective algorithms: read, checked, converted into schedules, and written."""
